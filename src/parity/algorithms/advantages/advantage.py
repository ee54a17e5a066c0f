"""The contract of an advantage: how much better an answer was than its siblings.

An advantage is a pure function of the rewards [G, N] of G groups of N siblings and of its
config. The loop calls it once per batch, on the CPU, and spreads each number over the
tokens of its sample. Rewards are float64; NaN stands for a sibling that has no reward:
unscored, failed, or padding of a smaller group. What must stay true: a group's result
depends on that group alone, an entry without a reward gets exactly 0 and changes no
sibling, and a group without spread is exactly 0 everywhere.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from parity.algorithms.advantages import ADVANTAGES
from parity.algorithms.config import GrpoAdvantageConfig
from parity.errors import RewardError
from parity.types import MAX_REWARD

Advantage = Callable[[Tensor, GrpoAdvantageConfig], Tensor]

ROUNDING = 1e-12  # relative difference below which two float64 rewards count as equal


def load_advantage(name: str) -> Advantage:
    """The advantage that a run file calls `name`, third-party ones included."""
    return cast(Advantage, ADVANTAGES.load(name))


def check_rewards(rewards: Tensor) -> None:
    """Refuse rewards [G, N] that no advantage can use; NaN (no reward) is fine.

    Raises RewardError, naming the first group and sibling, for an infinity or a number
    whose magnitude is above MAX_REWARD.
    """
    assert rewards.dim() == 2, f"rewards have shape {tuple(rewards.shape)}, expected [G, N]"
    assert rewards.dtype == torch.float64, f"rewards are {rewards.dtype}, expected float64"
    assert rewards.shape[1] > 0, "groups have no siblings; leave empty groups out"
    too_large = (rewards.abs() > MAX_REWARD).nonzero()
    if len(too_large):
        group, sibling = too_large[0].tolist()
        raise RewardError(
            f"The reward of sibling {sibling} of group {group} is "
            f"{rewards[group, sibling].item()}; it must be a finite number of magnitude "
            f"{MAX_REWARD:.0e} or less. Return Unscored where an answer can't be graded."
        )


def has_spread(rewards: Tensor) -> Tensor:
    """Which groups hold two different rewards, so that a step can learn from them: [G] bool.

    Always measured inside the group, whatever an advantage divides by. Rewards that differ
    by rounding alone (0.1 + 0.2 and 0.3) are equal; a group with fewer than two rewards has
    no spread.

    Args:
        rewards: [G, N] float64, NaN where there is no reward.
    """
    check_rewards(rewards)
    is_missing = rewards.isnan()
    low = rewards.masked_fill(is_missing, torch.inf).amin(dim=1)
    high = rewards.masked_fill(is_missing, -torch.inf).amax(dim=1)
    return high - low > ROUNDING * torch.maximum(low.abs(), high.abs())


def spread_share(rewards: Tensor) -> float | None:
    """Share of the groups [G, N] that have spread, in [0, 1]; None where there is no group."""
    return has_spread(rewards).double().mean().item() if len(rewards) else None
