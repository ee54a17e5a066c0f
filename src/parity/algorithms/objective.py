"""What the trainer minimises over one micro-batch, and the sums its metrics are made of.

    loss = sum_t weight_t * (correction_t * policy_loss_t + kl.coefficient * kl_t
                             - entropy.coefficient * entropy_t)

The trainer calls an objective once per micro-batch, back-propagates `loss`, adds `sums` up
over micro-batches and ranks (in float64), and turns the totals into metrics with `means`.
Weights carry the batch's denominator (`aggregation.py`), so losses add up as well.

A token without advantage (a group without spread) has no policy loss, but KL and entropy
still act on it. An empty micro-batch gives loss 0 with a graph, and sums of 0. Inputs that
aren't finite are counted under NOT_FINITE; the trainer refuses a step that has any.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from parity.algorithms.config import (
    Aggregation,
    CorrectionConfig,
    EntropyConfig,
    KlConfig,
    PpoClipLossConfig,
)
from parity.algorithms.correction import importance_weights
from parity.algorithms.kl import kl_penalty
from parity.algorithms.losses.loss import PolicyLoss
from parity.algorithms.mismatch import mismatch

TOKENS = "num_tokens"  # count, the denominator of every mean
NOT_FINITE = "num_not_finite"  # count of tokens with a NaN or infinity among their inputs
COUNTS = frozenset({TOKENS, NOT_FINITE})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFields:
    """The T trained tokens of one micro-batch, in one order; every sample is whole.

    Only `logprobs` and, where the entropy coefficient isn't 0, `entropy` carry gradient.
    """

    logprobs: Tensor  # [T] of the weights being trained
    rollout_logprobs: Tensor  # [T] as the engine reported them
    advantages: Tensor  # [T]
    weights: Tensor  # [T] share of the batch's loss, from `token_weights`
    sample_index: Tensor  # [T] int64
    entropy: Tensor | None = None  # [T] nats; None: not computed
    old_logprobs: Tensor | None = None  # [T]; None: `logprobs` are those that begin the step
    reference_logprobs: Tensor | None = None  # [T] of the frozen starting weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveTerms:
    """A micro-batch's part of the loss and of every metric.

    `sums` are detached float32 scalars: the two counts, and under each metric's own name
    the sum over tokens whose mean is the metric.
    """

    loss: Tensor
    sums: Mapping[str, Tensor]
    ratio_max: Tensor | None = None  # largest current / old probability; None: no ratio here


class Objective(Protocol):
    """What the trainer needs to know of an objective."""

    @property
    def aggregation(self) -> Aggregation:
        """How `TokenFields.weights` are made."""
        ...

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether `TokenFields.entropy` must be set, with gradient."""
        ...

    @property
    def needs_reference(self) -> bool:
        """Whether `TokenFields.reference_logprobs` must be set."""
        ...

    def __call__(self, fields: TokenFields) -> ObjectiveTerms:
        """Loss and metric sums of one micro-batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class PolicyObjective:
    """Reinforcement learning: policy loss, correction, KL penalty and entropy bonus.

    The trainer's side of ratio, correction and mismatch is `old_logprobs`, or the current
    ones without gradient where those are None. With `loss.old_logprobs=rollout` the ratio
    is taken against the engine's log-probs instead, and a correction would count the same
    gap twice.
    """

    policy_loss: PolicyLoss
    loss: PpoClipLossConfig
    kl: KlConfig
    entropy: EntropyConfig
    correction: CorrectionConfig

    def __post_init__(self) -> None:
        assert self.loss.old_logprobs == "trainer" or self.correction.level == "off", (
            "loss.old_logprobs=rollout already holds the gap that correction.level="
            f"{self.correction.level} corrects; the config resolver should have refused it"
        )

    @property
    def aggregation(self) -> Aggregation:
        """How token losses become one number."""
        return self.loss.aggregation

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether entropy is part of the loss."""
        return self.entropy.coefficient != 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether the KL penalty is part of the loss."""
        return self.kl.coefficient != 0.0

    def __call__(self, fields: TokenFields) -> ObjectiveTerms:
        """Loss and metric sums of one micro-batch."""
        rollout, current = fields.rollout_logprobs, fields.logprobs.detach()
        trainer = current if fields.old_logprobs is None else fields.old_logprobs
        old = rollout if self.loss.old_logprobs == "rollout" else trainer
        policy = self.policy_loss(
            fields.logprobs, old_logprobs=old, advantages=fields.advantages, config=self.loss
        )
        correction = importance_weights(
            trainer,
            rollout_logprobs=rollout,
            sample_index=fields.sample_index,
            config=self.correction,
        )
        gap = mismatch(trainer, rollout_logprobs=rollout)
        sums = {
            **_counts(fields),
            "train/clip_fraction": _total(policy.is_clipped),
            "train/ppo_kl": _total((rollout if old is current else old) - current),
            "train/train_rollout_logprob_abs_diff": _total(gap.abs_diff),
            "train/train_rollout_kl": _total(gap.kl),
        }
        if self.correction.level != "off":
            sums["train/correction_weight"] = _total(correction.weights)
            sums["train/correction_truncated_share"] = _total(correction.is_truncated)
        penalty, penalty_sums = self._penalty(fields)
        token_loss = correction.weights * policy.loss + penalty
        return ObjectiveTerms(
            loss=(fields.weights * token_loss).sum(),
            sums=sums | penalty_sums,
            ratio_max=policy.ratio.max() if len(policy.ratio) else None,
        )

    def _penalty(self, fields: TokenFields) -> tuple[Tensor, dict[str, Tensor]]:
        """KL penalty minus entropy bonus [T], zeros where both are off; and their sums."""
        total = torch.zeros_like(fields.logprobs)
        sums: dict[str, Tensor] = {}
        if fields.reference_logprobs is not None:
            kl = kl_penalty(
                fields.logprobs,
                reference_logprobs=fields.reference_logprobs,
                estimator=self.kl.estimator,
            )
            sums["train/kl_reference"] = _total(kl)
            if self.needs_reference:
                total = total + self.kl.coefficient * kl
        else:
            assert not self.needs_reference, "kl.coefficient is not 0; reference_logprobs is None"
        if fields.entropy is not None:
            sums["train/entropy"] = _total(fields.entropy)
            if self.needs_entropy_gradient:
                total = total - self.entropy.coefficient * fields.entropy
        else:
            assert not self.needs_entropy_gradient, "entropy.coefficient is not 0; entropy is None"
        return total, sums


@dataclass(frozen=True, kw_only=True)
class SftObjective:
    """Supervised fine-tuning: the weighted negative log-likelihood of the target tokens."""

    aggregation: Aggregation = "token_mean"

    @property
    def needs_entropy_gradient(self) -> bool:
        """Entropy is a metric only."""
        return False

    @property
    def needs_reference(self) -> bool:
        """There is no penalty."""
        return False

    def __call__(self, fields: TokenFields) -> ObjectiveTerms:
        """Loss and metric sums of one micro-batch; reads log-probs, weights and entropy."""
        sums = _counts(fields)
        if fields.entropy is not None:
            sums["train/entropy"] = _total(fields.entropy)
        return ObjectiveTerms(loss=-(fields.weights * fields.logprobs).sum(), sums=sums)


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a step from its summed-up `ObjectiveTerms.sums`; none without a token."""
    num_tokens = sums[TOKENS]
    if num_tokens == 0:
        return {}
    return {name: total / num_tokens for name, total in sums.items() if name not in COUNTS}


def _total(values: Tensor) -> Tensor:
    return values.detach().sum(dtype=torch.float32)


def _counts(fields: TokenFields) -> dict[str, Tensor]:
    """Number of tokens, and of those with a NaN or infinity in any of their fields."""
    always = (fields.logprobs, fields.rollout_logprobs, fields.advantages, fields.weights)
    optional = (fields.entropy, fields.old_logprobs, fields.reference_logprobs)
    values = (*always, *(value for value in optional if value is not None))
    is_finite = reduce(torch.logical_and, (value.isfinite() for value in values))
    return {TOKENS: _total(torch.ones_like(is_finite)), NOT_FINITE: _total(~is_finite)}
