"""Importance weights for the gap between the trainer and the engine that sampled.

    token      w_t = min(p_trainer(t) / p_engine(t), cap)
    sequence   w_t = min(prod over the sample's trained tokens of that ratio, cap)
    off        w_t = 1

Papers: truncated importance sampling, Ionides (2008); for engines that differ from the
trainer: Yao et al. (2025), "On the Rollout-Training Mismatch in Modern RL Systems". The
sequence form is unbiased apart from the cut, but its log grows with length; the token form
trades bias for variance. Only large weights are cut. No batch normalisation, hence no
denominator. The weight is exp(min(log-ratio, log cap)), so nothing overflows; it may
underflow to 0, which says that the trainer would not have sampled this.

A log-prob that isn't finite may hide behind the cap; `objective.py` counts such tokens
from its inputs, and the trainer refuses a step with any of them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.algorithms.config import CorrectionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionTerms:
    """Weights of T tokens, all detached."""

    weights: Tensor  # [T], in [0, cap]
    is_truncated: Tensor  # [T] bool: cut to the cap; on `sequence` the whole sample's tokens


def importance_weights(
    trainer_logprobs: Tensor,
    *,
    rollout_logprobs: Tensor,
    sample_index: Tensor,
    config: CorrectionConfig,
) -> CorrectionTerms:
    """Truncated weight of each token, p_trainer / p_engine.

    Args:
        trainer_logprobs: [T] by the trainer, under the weights that begin the step.
        rollout_logprobs: [T] as the engine reported them.
        sample_index: [T] int64; every sample is whole among these T tokens.
        config: level, decided (`CorrectionConfig.beside`), and cap.
    """
    assert config.level != "auto", "the level is still to be decided"
    log_ratio = trainer_logprobs.detach() - rollout_logprobs.detach()
    if config.level == "off":
        nowhere = torch.zeros_like(log_ratio, dtype=torch.bool)
        return CorrectionTerms(weights=torch.ones_like(log_ratio), is_truncated=nowhere)
    if config.level == "sequence":
        samples, position = sample_index.unique(return_inverse=True)
        totals = log_ratio.new_zeros(len(samples)).index_add(0, position, log_ratio)
        log_ratio = totals[position]
    log_cap = math.log(config.cap)
    return CorrectionTerms(
        weights=log_ratio.clamp(max=log_cap).exp(), is_truncated=log_ratio > log_cap
    )
