"""GRPO: the reward of an answer against the mean of its siblings.

    advantage_i = (r_i - mean(r)) / (std(r) + eps)      normalize_std=True
    advantage_i =  r_i - mean(r)                        normalize_std=False

Papers: DeepSeekMath (Shao et al. 2024), section 4.1.2, outcome supervision; without the
standard deviation: Dr. GRPO (Liu et al. 2025, "Understanding R1-Zero-Like Training"), whose
other half is an aggregation without length bias, `loss.aggregation=token_mean`.

Denominators: mean and std run over the n members of the group that have a reward. The paper
leaves open which std; ours is the unbiased one, sqrt(sum (r_i - mean)^2 / (n - 1)), as in
TRL and verl, so that numbers compare. eps is 1e-6.

Degenerate groups: no spread (all equal, one reward, none at all) is exactly 0, because the
rounded mean of n equal numbers need not be that number. No reward: exactly 0.
"""

from torch import Tensor

from parity.algorithms.advantages.advantage import has_spread
from parity.algorithms.config import GrpoAdvantageConfig

STD_EPSILON = 1e-6


def grpo(rewards: Tensor, config: GrpoAdvantageConfig) -> Tensor:
    """Advantages [G, N] float64 of rewards [G, N] float64 (NaN: no reward).

    Raises RewardError for an infinite or absurdly large reward.
    """
    is_learnable = has_spread(rewards).unsqueeze(1) & ~rewards.isnan()
    num_scored = (~rewards.isnan()).sum(dim=1, keepdim=True)
    mean = rewards.nansum(dim=1, keepdim=True) / num_scored
    advantages = rewards - mean
    if config.normalize_std:
        variance = advantages.square().nansum(dim=1, keepdim=True) / (num_scored - 1)
        advantages = advantages / (variance.sqrt() + STD_EPSILON)
    return advantages.masked_fill(~is_learnable, 0.0)
