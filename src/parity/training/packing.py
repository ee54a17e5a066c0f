"""Samples -> micro-batches of padded rows with flat targets; used by `trainer.py`.

A row holds one sample, or a tree of samples that begin alike ("shared"): what they have in
common is one run of columns, whether it is a prompt, an instruction in front of different
prompts, or the beginning of two answers; equal samples are the same columns.

    a b c d      columns    a  b  c  d  e  f  x
    a b c e f    positions  0  1  2  3  3  4  1     depth in the tree
    a x          ends       7  6  6  4  6  6  7     one behind the branch below a column

Columns are in depth-first order, so a column looks back at exactly those whose branch it is
in: `key <= query < ends[key]`. Every log-probability is the one of the unshared row.
Padding stands on the right, where a causal model never looks, so plain rows need no mask.
The input ends in front of a sample's last trained token: nothing behind it is ever read.
Weights are computed over the whole batch; the sum of the micro-batch losses is therefore
the batch loss whatever the split, the order and the padding.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from parity.algorithms.aggregation import token_weights
from parity.algorithms.config import Aggregation
from parity.errors import DataError
from parity.training.layout import ModelCost, Row, share_out, split_kinds, split_rows, tree_rows
from parity.training.micro_batch import Batch, MicroBatch, empty_micro_batch
from parity.types import Sample

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Share:
    """One of `size` equal parts of a batch."""

    rank: int
    size: int


ALL = Share(0, 1)


def pack(
    samples: Sequence[Sample],
    *,
    aggregation: Aggregation,
    max_tokens: int,
    prefix_sharing: bool,
    cost: ModelCost,
    skips_zero_advantage: bool = False,
    share: Share = ALL,
) -> Batch:
    """Lay samples out in rows and rows in micro-batches; those of one rank of several.

    Args:
        samples: the whole batch; order is free.
        aggregation: how token losses become one number (weights are global).
        max_tokens: padded tokens of a micro-batch; a longer row gets one of its own.
        prefix_sharing: whether samples that begin alike may share a row.
        cost: decides where sharing and splitting save time.
        skips_zero_advantage: whether a token without advantage has no gradient; samples that
            have no other tokens then get micro-batches of their own, which need no backward.
        share: whose micro-batches are wanted of several ranks; each gets equally many of each
            kind, empty ones where it has too few, and all counts are of the whole batch.

    Raises DataError for a sample that breaks its own shape rules.
    """
    table = _Table.of(samples)
    trained = table.order(np.flatnonzero(table.num_trained))
    weights = _weights(table, aggregation)
    effective = table.advantages != 0.0 if skips_zero_advantage else np.ones(table.size, bool)
    learns = _learning(samples, table, effective)
    idle, learning = _by_need(
        table, trained, learns, max_tokens=max_tokens, cost=cost, prefix_sharing=prefix_sharing
    )
    micro_batches: list[MicroBatch] = []
    num_columns = 0
    for found in (idle, learning):
        runs = _runs(found, share.size, max_tokens=max_tokens, cost=cost)
        mine = [
            _micro_batch(run, table, weights, needs_gradient=found is learning)
            for run in runs[share.rank]
        ]
        missing = max(map(len, runs)) - len(mine)
        num_columns += sum(len(r) * max(row.length for row in r) for rank in runs for r in rank)
        micro_batches += mine + [empty_micro_batch(needs_gradient=found is learning)] * missing
    return Batch(
        micro_batches=tuple(micro_batches),
        num_samples=len(samples),
        num_untrained_samples=len(samples) - len(trained),
        num_trained_tokens=table.size,
        num_effective_tokens=int(np.count_nonzero(effective)),
        num_input_tokens=sum(row.length for row in idle + learning),
        num_unshared_tokens=int(table.num_inputs.sum()),
        num_padded_tokens=num_columns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """All samples end to end [M], and their trained tokens end to end [T], as arrays."""

    tokens: Ints  # [M]
    begins: Ints  # [N] where each sample begins in `tokens`
    num_inputs: Ints  # [N] input tokens that are needed: all in front of the last trained one
    num_trained: Ints  # [N]
    first: Ints  # [N] where each sample begins among the trained tokens
    places: Ints  # [T] of a trained token in its sample
    targets: Ints  # [T]
    advantages: Floats  # [T]
    logprobs: Floats  # [T]
    versions: Ints  # [T]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "_Table":
        """Check the shapes of every sample and put them end to end."""
        lengths = np.array([len(sample.tokens) for sample in samples], dtype=np.int64)
        for name in ("loss_mask", "logprobs", "versions", "advantages"):
            found = [len(getattr(sample, name)) for sample in samples]
            for index in np.flatnonzero(lengths != found).tolist():
                raise DataError(
                    f"sample {index} of group {samples[index].group} has {lengths[index]} tokens"
                    f" and {found[index]} {name}; every tuple needs one entry per token."
                )
        begins = np.cumsum(lengths) - lengths
        mask = _joined(samples, lambda sample: sample.loss_mask, np.bool_)
        filled = np.flatnonzero(lengths > 0)
        for index in filled[mask[begins[filled]]].tolist():
            raise DataError(
                f"sample {index} of group {samples[index].group} trains its first token, which"
                " nothing predicts; start loss_mask with False."
            )
        where = np.flatnonzero(mask)
        owner = np.searchsorted(begins, where, side="right") - 1
        # An empty sample begins where the next one does; the rightmost of these has the token.
        num_trained = np.bincount(owner, minlength=len(samples)).astype(np.int64)
        places = where - begins[owner]
        num_inputs = np.zeros(len(samples), dtype=np.int64)
        num_inputs[owner] = places  # ascending, so the last one stays
        tokens = _joined(samples, lambda sample: sample.tokens, np.int64)
        return cls(
            tokens=tokens,
            begins=begins,
            num_inputs=num_inputs,
            num_trained=num_trained,
            first=np.cumsum(num_trained) - num_trained,
            places=places,
            targets=tokens[where],
            advantages=_joined(samples, lambda sample: sample.advantages, np.float32)[where],
            logprobs=_joined(samples, lambda sample: sample.logprobs, np.float32)[where],
            versions=_joined(samples, lambda sample: sample.versions, np.int64)[where],
        )

    @property
    def size(self) -> int:
        """Trained tokens of all samples."""
        return len(self.places)

    def order(self, indices: Ints) -> list[int]:
        """`indices` in the lexicographic order of the samples' input tokens."""
        keys = {i: self.inputs(i).astype(">i4").tobytes() for i in indices.tolist()}
        return sorted(keys, key=lambda index: (keys[index], index))

    def inputs(self, index: int) -> Ints:
        """The input tokens of one sample."""
        return self.tokens[self.begins[index] : self.begins[index] + self.num_inputs[index]]

    def trained(self, members: Sequence[int]) -> Ints:
        """The trained tokens of several samples, end to end, as places in [T]."""
        counts = self.num_trained[list(members)]
        skipped = np.cumsum(counts) - counts
        starts = np.repeat(self.first[list(members)] - skipped, counts)
        return starts + np.arange(len(starts))


def _joined(
    samples: Sequence[Sample],
    of: Callable[[Sample], Sequence[int] | Sequence[float] | Sequence[bool]],
    dtype: type[Scalar],
) -> NDArray[Scalar]:
    """One field of all samples, end to end."""
    return np.fromiter(itertools.chain.from_iterable(map(of, samples)), dtype=dtype)


def _learning(samples: Sequence[Sample], table: _Table, effective: NDArray[np.bool_]) -> list[bool]:
    """Per sample, whether its group has a token that the objective can learn from."""
    owner = np.repeat(np.arange(len(samples)), table.num_trained)
    groups = {samples[index].group for index in np.unique(owner[effective]).tolist()}
    return [sample.group in groups for sample in samples]


def _by_need(
    table: _Table,
    ordered: Sequence[int],
    learns: Sequence[bool],
    *,
    max_tokens: int,
    cost: ModelCost,
    prefix_sharing: bool,
) -> tuple[list[Row], list[Row]]:
    """Rows that need no backward pass and rows that do; too few of those go with these."""
    idle, learning = (
        _rows(
            table,
            [index for index in ordered if learns[index] == needs_gradient],
            max_tokens=max_tokens,
            cost=cost if prefix_sharing else None,
        )
        for needs_gradient in (False, True)
    )
    if learning and sum(row.length for row in idle) <= cost.pass_tokens:
        return [], learning + idle
    return idle, learning


def _rows(
    table: _Table, ordered: Sequence[int], *, max_tokens: int, cost: ModelCost | None
) -> list[Row]:
    """Rows of the samples `ordered`, which stand in lexicographic order."""
    window = cost.max_shared_tokens if cost is not None else 0
    joined = [i for i in ordered if window is None or table.num_inputs[i] <= window]
    alone = [i for i in ordered if window is not None and table.num_inputs[i] > window]
    rows = [Row((index,), int(table.num_inputs[index])) for index in alone]
    if cost is None or not joined:
        return rows
    inputs = [table.inputs(index) for index in joined]
    commons = [0, *itertools.starmap(_common, itertools.pairwise(inputs))]
    lengths = table.num_inputs[joined]
    return rows + tree_rows(
        joined, lengths, np.array(commons, dtype=np.int64), cost=cost, max_tokens=max_tokens
    )


def _runs(
    rows: Sequence[Row], num_ranks: int, *, max_tokens: int, cost: ModelCost
) -> list[list[list[Row]]]:
    """By rank the rows of each of its micro-batches."""
    shares = share_out([row.length for row in rows], num_ranks)
    return [
        [
            run
            for kind in split_kinds([rows[index] for index in share], cost)
            for run in split_rows(kind, max_tokens=max_tokens, pass_tokens=cost.pass_tokens)
        ]
        for share in shares
    ]


def _common(first: Ints, second: Ints) -> int:
    """How many tokens both have in common at their beginnings."""
    shorter = min(len(first), len(second))
    unequal = first[:shorter] != second[:shorter]
    place = int(unequal.argmax())
    return place if unequal[place] else shorter


def _weights(table: _Table, aggregation: Aggregation) -> Floats:
    """The weight [T] of every trained token."""
    owner = np.repeat(np.arange(len(table.num_trained)), table.num_trained)
    if not owner.size:
        return np.zeros(0, dtype=np.float32)
    return token_weights(torch.from_numpy(owner), aggregation).to(torch.float32).numpy()


def _micro_batch(
    rows: Sequence[Row], table: _Table, weights: Floats, *, needs_gradient: bool
) -> MicroBatch:
    is_shared = any(row.is_shared for row in rows)
    shape = (len(rows), max(row.length for row in rows))
    tokens = np.zeros(shape, dtype=np.int64)
    positions = np.zeros(shape, dtype=np.int64)
    ends = np.full(shape, shape[1], dtype=np.int64)
    columns = [_lay_out(row, table, tokens[r], positions[r], ends[r]) for r, row in enumerate(rows)]
    members = [member for row in rows for member in row.members]
    trained = table.trained(members)
    counts = table.num_trained[members]
    widths = [sum(table.num_trained[list(row.members)].tolist()) for row in rows]
    where = np.repeat(np.arange(len(rows)), widths), np.concatenate(columns)
    targets, predictions = table.targets[trained], None
    if is_shared:
        first, predictions = _equal(where, targets, shape[1])
        where, targets = (where[0][first], where[1][first]), targets[first]
    return MicroBatch(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions) if is_shared else None,
        ends=torch.from_numpy(ends) if is_shared else None,
        rows=torch.from_numpy(where[0]),
        columns=torch.from_numpy(where[1]),
        targets=torch.from_numpy(targets),
        predictions=None if predictions is None else torch.from_numpy(predictions),
        advantages=torch.from_numpy(table.advantages[trained]),
        rollout_logprobs=torch.from_numpy(table.logprobs[trained]),
        weights=torch.from_numpy(weights[trained]),
        sample_index=torch.from_numpy(np.repeat(members, counts)),
        versions=torch.from_numpy(table.versions[trained]),
        needs_gradient=needs_gradient,
    )


def _lay_out(row: Row, table: _Table, tokens: Ints, positions: Ints, ends: Ints) -> Ints:
    """Fill one row [L]; returns the columns that predict its trained tokens, member by member."""
    lengths = table.num_inputs[list(row.members)]
    path = np.zeros(int(lengths.max()), dtype=np.int64)  # column of each depth, now
    columns: list[Ints] = []
    begin = depth = 0
    for member, length, common in zip(row.members, lengths.tolist(), row.commons, strict=True):
        ends[path[common:depth]] = begin  # the branches that are left
        end = begin + length - common
        path[common:length] = np.arange(begin, end)
        tokens[begin:end] = table.inputs(member)[common:]
        positions[begin:end] = np.arange(common, length)
        start = table.first[member]
        columns.append(path[table.places[start : start + table.num_trained[member]] - 1])
        begin, depth = end, length
    return np.concatenate(columns)


def _equal(where: tuple[Ints, Ints], targets: Ints, width: int) -> tuple[Ints, Ints]:
    """Equal predictions once: the first of each, and which one every trained token is."""
    spread = int(targets.max()) + 1
    keys = (where[0] * width + where[1]) * spread + targets
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse.astype(np.int64)
