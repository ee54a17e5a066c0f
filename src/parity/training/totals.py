"""The numbers of a step: sums over its micro-batches and ranks, and what a batch is made of.

Used by `trainer.py`. Invariant: every rank has the same sums, so that all of them take a step or
none does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from parity.algorithms.objective import NOT_FINITE, TOKENS, ObjectiveTerms, means
from parity.training.micro_batch import Batch
from parity.training.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the micro-batches of a step, in float64."""

    losses: list[float]  # per micro-batch of this rank
    loss: float
    sums: Mapping[str, float]

    @classmethod
    def of(cls, terms: Sequence[ObjectiveTerms], ranks: Ranks) -> "Totals":
        """Of this rank's micro-batches, added up over the ranks; the same on each of them."""
        names = list(terms[0].sums) if terms else []
        rows = [
            torch.stack([term.loss.detach(), *(term.sums[name] for name in names)])
            for term in terms
        ]
        table = torch.stack(rows).tolist() if rows else []
        if not table:
            return cls([], 0.0, {})
        local = [sum((row[i] for row in table), start=0.0) for i in range(1 + len(names))]
        loss, *sums = ranks.add(torch.tensor(local, dtype=torch.float64)).tolist()
        return cls([row[0] for row in table], loss, dict(zip(names, sums, strict=True)))

    @property
    def num_tokens(self) -> int:
        """Trained tokens."""
        return round(self.sums.get(TOKENS, 0.0))

    @property
    def num_not_finite(self) -> int:
        """Of these, with a number that isn't finite."""
        return round(self.sums.get(NOT_FINITE, 0.0))

    @property
    def metrics(self) -> dict[str, float]:
        """Loss and means over tokens; nothing where there is no token."""
        return {"train/loss": self.loss, **means(self.sums)} if self.losses else {}


def batch_metrics(batch: Batch) -> dict[str, float]:
    """What is known of a batch before it is computed; shares only where there is a token."""
    metrics = {
        "train/tokens": float(batch.num_effective_tokens),
        "train/computed_tokens": float(batch.num_padded_tokens),
    }
    if batch.num_samples:
        metrics["train/trained_tokens_mean"] = batch.num_trained_tokens / batch.num_samples
    if batch.padding_share is not None:
        metrics["train/padding_share"] = batch.padding_share
    if batch.shared_share is not None:
        metrics["train/prefix_shared_share"] = batch.shared_share
    return metrics
