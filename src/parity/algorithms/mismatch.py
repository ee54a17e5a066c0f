"""How far the trainer's log-probs are from the engine's, the first thing to watch.

Both numbers compare what the trainer computes for a sampled token with what the engine
reported when it sampled it, so they are 0 where trainer and engine agree to the last bit.
The objective computes them for every step, correction or not, and never from the engine's
numbers alone. A NaN on either side stays NaN: a broken side must not look perfect.
"""

from dataclasses import dataclass

from torch import Tensor

from parity.algorithms.kl import kl_penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchTerms:
    """The two headline numbers of T tokens, all detached."""

    abs_diff: Tensor  # [T] |log p_trainer - log p_engine|, nats
    kl: Tensor  # [T] k3 estimate of KL(engine || trainer), nats, >= 0


def mismatch(trainer_logprobs: Tensor, *, rollout_logprobs: Tensor) -> MismatchTerms:
    """Compare log-probs [T] of the trainer with those [T] that came with the tokens."""
    trainer, rollout = trainer_logprobs.detach(), rollout_logprobs.detach()
    return MismatchTerms(
        abs_diff=(trainer - rollout).abs(),
        kl=kl_penalty(rollout, reference_logprobs=trainer, estimator="k3"),
    )
