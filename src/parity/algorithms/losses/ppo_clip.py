"""PPO's clipped policy loss, with separate bounds and a cap for negative advantages.

    ratio = exp(logprob - old_logprob)
    loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
    loss  = min(loss, dual_clip * -A)                                     where A < 0

Papers: PPO (Schulman et al. 2017), eq. 7; separate bounds: DAPO (Yu et al. 2025), section
3.1 "Clip-Higher"; cap: dual-clip PPO (Ye et al. 2020, "Mastering Complex Control in MOBA
Games with Deep Reinforcement Learning"). No denominator: see `aggregation.py`.

Where we differ: the log-ratio is clamped to +-MAX_LOG_RATIO, so that value and gradient
are finite for any finite input. Beyond the clamp the gradient is 0, as it is wherever
clipping decides; such tokens count as clipped. The clamp matters only with dual_clip off
(large ratio, A < 0) and for ratios so small that their gradient is nothing (A > 0).
"""

from torch import Tensor

from parity.algorithms.config import PpoClipLossConfig
from parity.algorithms.losses.loss import PolicyTerms

MAX_LOG_RATIO = 20.0  # natural log; a ratio of about 4.9e8 or its inverse


def ppo_clip(
    logprobs: Tensor, *, old_logprobs: Tensor, advantages: Tensor, config: PpoClipLossConfig
) -> PolicyTerms:
    """Clipped surrogate loss [T] of each token; see `PolicyLoss` for the arguments."""
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    is_bounded = bounded > loss
    loss = bounded.where(is_bounded, loss)
    is_clipped = is_bounded | ((log_ratio.abs() > MAX_LOG_RATIO) & (advantages != 0.0))
    if config.dual_clip is not None:
        cap = -advantages * config.dual_clip
        is_capped = (advantages < 0.0) & (loss > cap)
        loss = cap.where(is_capped, loss)
        is_clipped = is_clipped | is_capped
    return PolicyTerms(loss=loss, is_clipped=is_clipped, ratio=ratio.detach())
