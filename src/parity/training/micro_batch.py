"""What the trainer computes on: micro-batches of rows, made by `packing.py`."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward pass consumes: rows [R, L], U predictions in them, T trained tokens.

    Prediction u is of token `targets[u]` from the hidden state at `rows[u], columns[u]`;
    trained token t, of one sample, is prediction `predictions[t]`. Samples that go on alike
    share predictions. All trained tokens of a sample are in one micro-batch.
    """

    tokens: Tensor  # [R, L] int64, 0 where padded
    positions: Tensor | None  # [R, L] int64; None: 0 .. L-1 in every row
    ends: Tensor | None  # [R, L] int64, one behind a column's branch; None: plain causal
    rows: Tensor  # [U] int64
    columns: Tensor  # [U] int64
    targets: Tensor  # [U] int64
    predictions: Tensor | None  # [T] int64 into U; None: U = T, in order
    advantages: Tensor  # [T] float32
    rollout_logprobs: Tensor  # [T] float32
    weights: Tensor  # [T] float32, sum 1 over the batch
    sample_index: Tensor  # [T] int64, place of the sample in the batch
    versions: Tensor  # [T] int64
    needs_gradient: bool  # False: every advantage is 0 and the objective needs one

    @property
    def num_padded_tokens(self) -> int:
        """Columns of all rows, padding included."""
        return self.tokens.numel()

    def to(self, device: torch.device) -> "MicroBatch":
        """The same micro-batch on `device`."""
        if self.tokens.device == device:
            return self
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {k: v.to(device) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def attention_mask(self) -> Tensor | None:
        """What each column may look at, bool [R, 1, L, L]; None where plain causal.

        A padded column looks at other padding, so that no row of the softmax is empty;
        nothing looks at it.
        """
        if self.ends is None:
            return None
        columns = torch.arange(self.ends.shape[1], device=self.ends.device)
        query, key = columns[:, None], columns[None, :]
        return ((key <= query) & (query < self.ends[:, None, :]))[:, None]

    def per_token(self, values: Tensor) -> Tensor:
        """Values [U] of the predictions as values [T] of the trained tokens."""
        return values if self.predictions is None else values.index_select(0, self.predictions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one optimizer step consumes: micro-batches of one rank, counts of all ranks."""

    micro_batches: tuple[MicroBatch, ...]
    num_samples: int
    num_untrained_samples: int  # without a trained token: they contribute nothing
    num_trained_tokens: int  # under the loss mask
    num_effective_tokens: int  # of these, the ones that the objective can learn from
    num_input_tokens: int  # input tokens of all rows, without padding
    num_unshared_tokens: int  # what they would be without prefix sharing
    num_padded_tokens: int  # columns of all rows, padding included: what is computed

    @property
    def padding_share(self) -> float | None:
        """Padding over all columns; None for an empty batch."""
        columns = self.num_padded_tokens
        return 1.0 - self.num_input_tokens / columns if columns else None

    @property
    def shared_share(self) -> float | None:
        """Input tokens that prefix sharing saved over all of them; None for an empty batch."""
        total = self.num_unshared_tokens
        return 1.0 - self.num_input_tokens / total if total else None


def empty_micro_batch(*, needs_gradient: bool) -> MicroBatch:
    """One column and nothing to learn: for a rank that has fewer passes than the others."""
    ints, reals = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    return MicroBatch(
        tokens=torch.zeros((1, 1), dtype=torch.int64),
        positions=None,
        ends=None,
        rows=ints,
        columns=ints,
        targets=ints,
        predictions=None,
        advantages=reals,
        rollout_logprobs=reals,
        weights=reals,
        sample_index=ints,
        versions=ints,
        needs_gradient=needs_gradient,
    )
