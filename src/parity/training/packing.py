"""Samples -> micro-batches of padded rows with flat targets; used by `trainer.py`.

A row holds one sample, or one prompt followed by the responses of several siblings
("shared"): positions restart behind the prompt for every sibling, and a sibling attends to
the prompt and to itself only, so every log-probability is the one of the unshared row.
Padding stands on the right, where a causal model never looks, so plain rows need no mask.
The input ends in front of a sample's last trained token: nothing behind it is ever read.
Weights are computed over the whole batch; the sum of the micro-batch losses is therefore
the batch loss whatever the split, the order and the padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parity.algorithms.aggregation import token_weights
from parity.algorithms.config import Aggregation
from parity.errors import DataError
from parity.training.layout import ModelCost, Row, share_rows, split_rows
from parity.types import Sample

PADDING = -1  # segment of a padded column


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward pass consumes: rows [R, L] and the trained tokens [T] in them.

    Trained token t is predicted by the hidden state at `rows[t], columns[t]`. Several
    siblings' first tokens share a column. All trained tokens of a sample are in one
    micro-batch.
    """

    tokens: Tensor  # [R, L] int64, 0 where padded
    positions: Tensor | None  # [R, L] int64; None: 0 .. L-1 in every row
    segments: Tensor | None  # [R, L] int64: 0 prompt, 1.. siblings, -1 padding; None: causal
    rows: Tensor  # [T] int64
    columns: Tensor  # [T] int64
    targets: Tensor  # [T] int64
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
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {k: v.to(device) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def attention_mask(self) -> Tensor | None:
        """What each column may look at, bool [R, 1, L, L]; None where plain causal.

        A padded column looks at the prompt and other padding, so that no row of the softmax
        is empty; nothing looks at it.
        """
        if self.segments is None:
            return None
        length = self.segments.shape[1]
        query, key = self.segments[:, :, None], self.segments[:, None, :]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.segments.device).tril()
        return (causal & ((key == 0) | (key == query)))[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one optimizer step consumes."""

    micro_batches: tuple[MicroBatch, ...]
    num_samples: int
    num_untrained_samples: int  # without a trained token: they contribute nothing
    num_trained_tokens: int  # under the loss mask
    num_effective_tokens: int  # of these, the ones that the objective can learn from
    num_input_tokens: int  # input tokens of all rows, without padding
    num_unshared_tokens: int  # what they would be without prefix sharing

    @property
    def num_padded_tokens(self) -> int:
        """Columns of all rows, padding included: what is computed."""
        return sum(micro_batch.num_padded_tokens for micro_batch in self.micro_batches)

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


def pack(
    samples: Sequence[Sample],
    *,
    aggregation: Aggregation,
    max_tokens: int,
    prefix_sharing: bool,
    cost: ModelCost,
    skips_zero_advantage: bool = False,
) -> Batch:
    """Lay samples out in rows and rows in micro-batches.

    Args:
        samples: the whole batch; order is free.
        aggregation: how token losses become one number (weights are global).
        max_tokens: padded tokens of a micro-batch; a longer row gets one of its own.
        prefix_sharing: whether siblings may share the row of their prompt.
        cost: decides where sharing and splitting save time.
        skips_zero_advantage: whether a token without advantage has no gradient; samples that
            have no other tokens then get micro-batches of their own, which need no backward.

    Raises DataError for a sample that breaks its own shape rules.
    """
    arrays = [_SampleArrays.of(sample, index) for index, sample in enumerate(samples)]
    trained = [array for array in arrays if array.trained.size]
    rows = _rows(trained, max_tokens=max_tokens, cost=cost if prefix_sharing else None)
    weights = _weights(trained, aggregation)
    by_index = {array.index: array for array in trained}
    kinds: dict[tuple[bool, bool], list[Row]] = {}
    for row in rows:
        needs_gradient = not skips_zero_advantage or any(
            by_index[member].advantages.any() for member in row.members
        )
        kinds.setdefault((row.is_shared, needs_gradient), []).append(row)
    effective = [a.advantages if skips_zero_advantage else a.trained for a in trained]
    return Batch(
        micro_batches=tuple(
            _micro_batch(run, by_index, weights, needs_gradient=needs_gradient)
            for (_, needs_gradient), kind in sorted(kinds.items())
            for run in split_rows(kind, max_tokens=max_tokens, pass_tokens=cost.pass_tokens)
        ),
        num_samples=len(samples),
        num_untrained_samples=len(samples) - len(trained),
        num_trained_tokens=sum(array.trained.size for array in trained),
        num_effective_tokens=sum(int(np.count_nonzero(values)) for values in effective),
        num_input_tokens=sum(row.length for row in rows),
        num_unshared_tokens=sum(array.num_inputs for array in trained),
    )


@dataclass(frozen=True, slots=True)
class _SampleArrays:
    """One sample with the places of its trained tokens."""

    index: int
    sample: Sample
    tokens: NDArray[np.int64]  # [L]
    trained: NDArray[np.int64]  # places of the trained tokens, ascending
    advantages: NDArray[np.float32]  # of the trained tokens

    @classmethod
    def of(cls, sample: Sample, index: int) -> "_SampleArrays":
        length = len(sample.tokens)
        for name, values in (
            ("loss_mask", sample.loss_mask),
            ("logprobs", sample.logprobs),
            ("versions", sample.versions),
            ("advantages", sample.advantages),
        ):
            if len(values) != length:
                raise DataError(
                    f"sample {index} of group {sample.group} has {length} tokens and"
                    f" {len(values)} {name}; every tuple needs one entry per token."
                )
        trained = np.flatnonzero(np.asarray(sample.loss_mask, dtype=bool))
        if trained.size and trained[0] == 0:
            raise DataError(
                f"sample {index} of group {sample.group} trains its first token, which nothing"
                " predicts; start loss_mask with False."
            )
        tokens = np.asarray(sample.tokens, dtype=np.int64)
        return cls(index, sample, tokens, trained, _taken(sample.advantages, trained))

    @property
    def num_inputs(self) -> int:
        """Input tokens that are needed: everything in front of the last trained token."""
        return int(self.trained[-1])

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.sample.tokens[: self.sample.num_prompt_tokens]


def _rows(arrays: Sequence[_SampleArrays], *, max_tokens: int, cost: ModelCost | None) -> list[Row]:
    """Rows of all samples; siblings are joined only if their prompts are the same ids."""
    if cost is None:
        return [Row((array.index,), array.num_inputs) for array in arrays]
    families: dict[tuple[int, tuple[int, ...]], list[_SampleArrays]] = {}
    rows: list[Row] = []
    for array in arrays:
        if 1 <= array.sample.num_prompt_tokens <= array.num_inputs:
            families.setdefault((array.sample.group, array.prompt), []).append(array)
        else:
            rows.append(Row((array.index,), array.num_inputs))
    for (_, prompt), family in families.items():
        rows += share_rows(
            [array.index for array in family],
            [array.num_inputs for array in family],
            num_prompt_tokens=len(prompt),
            cost=cost,
            max_tokens=max_tokens,
        )
    return rows


def _weights(
    arrays: Sequence[_SampleArrays], aggregation: Aggregation
) -> dict[int, NDArray[np.float32]]:
    """Per sample the weights of its trained tokens."""
    if not arrays:
        return {}
    counts = [array.trained.size for array in arrays]
    sample_index = np.repeat([array.index for array in arrays], counts)
    weights = token_weights(torch.from_numpy(sample_index), aggregation)
    parts = np.split(weights.to(torch.float32).numpy(), np.cumsum(counts)[:-1])
    return {array.index: part for array, part in zip(arrays, parts, strict=True)}


def _micro_batch(
    rows: Sequence[Row],
    arrays: dict[int, _SampleArrays],
    weights: dict[int, NDArray[np.float32]],
    *,
    needs_gradient: bool,
) -> MicroBatch:
    shape = (len(rows), max(row.length for row in rows))
    is_shared = rows[0].is_shared
    tokens = np.zeros(shape, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    segments = np.full(shape, PADDING, dtype=np.int64)
    columns: list[NDArray[np.int64]] = []
    members: list[_SampleArrays] = []
    for r, row in enumerate(rows):
        family = [arrays[index] for index in row.members]
        prompt = family[0].sample.num_prompt_tokens if row.is_shared else family[0].num_inputs
        tokens[r, :prompt] = family[0].tokens[:prompt]
        positions[r, :prompt] = np.arange(prompt)
        segments[r, :prompt] = 0
        begin = prompt
        for segment, array in enumerate(family, start=1):
            end = begin + array.num_inputs - prompt
            tokens[r, begin:end] = array.tokens[prompt : array.num_inputs]
            positions[r, begin:end] = np.arange(prompt, array.num_inputs)
            segments[r, begin:end] = segment
            before = array.trained - 1  # the token that predicts it
            columns.append(np.where(before < prompt, before, before - prompt + begin))
            begin = end
        members += family
    return MicroBatch(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions) if is_shared else None,
        segments=torch.from_numpy(segments) if is_shared else None,
        rows=_flat(
            [
                np.full(arrays[index].trained.size, r, dtype=np.int64)
                for r, row in enumerate(rows)
                for index in row.members
            ]
        ),
        columns=_flat(columns),
        targets=_flat([array.tokens[array.trained] for array in members]),
        advantages=_flat([array.advantages for array in members]),
        rollout_logprobs=_flat([_taken(a.sample.logprobs, a.trained) for a in members]),
        weights=_flat([weights[array.index] for array in members]),
        sample_index=_flat([np.full(a.trained.size, a.index, dtype=np.int64) for a in members]),
        versions=_flat([np.asarray(a.sample.versions, np.int64)[a.trained] for a in members]),
        needs_gradient=needs_gradient,
    )


def _taken(values: Sequence[float], places: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)[places]


def _flat(
    parts: Sequence[NDArray[np.int64]] | Sequence[NDArray[np.float32]],
) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
