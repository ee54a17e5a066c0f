"""Which samples share a row and which rows share a micro-batch; used by `packing.py`.

Pure arithmetic on lengths (no tensors): a row is one sample or a tree of samples that begin
alike, whichever needs fewer floating-point operations; a micro-batch is a set of rows of
similar length. Neither choice changes a result, only its cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

HOST_PASS_TOKENS = 64  # fixed cost of one more pass where the CPU computes, in tokens
DEVICE_PASS_TOKENS = 1024  # the same where a device waits for launches
LEAST_SAVING = 0.05  # of a row's cost; below it sharing isn't worth the mask
WINDOW_KEYS = ("sliding_window", "attention_chunk_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """Floating-point operations of a forward pass, and how long a shared sample may be.

    On a CPU both kinds of operation run at the same rate to within a quarter (measured with
    rows of 32 to 1,024 tokens), so they are simply added.
    """

    token_flops: float  # matrix products of one token
    pair_flops: float  # attention of one query to one key, all layers
    pass_tokens: int = HOST_PASS_TOKENS  # fixed cost of one more forward pass, in tokens
    max_shared_tokens: int | None = None  # window of local attention; longer samples stay alone

    @classmethod
    def of(cls, model: PreTrainedModel, *, device: torch.device | None = None) -> "ModelCost":
        """The cost of a Hugging Face causal language model, from its shapes.

        Args:
            device: where it computes; None: where it is.
        """
        config = model.config.get_text_config()
        embeddings = model.get_input_embeddings()
        head = model.get_output_embeddings()
        apart = {id(p) for module in (embeddings, head) for p in _parameters(module)}
        weights = sum(p.numel() for p in model.parameters() if id(p) not in apart)
        heads = _number(config, "num_attention_heads") or 1
        head_dim = _number(config, "head_dim") or (_number(config, "hidden_size") or 0) // heads
        windows = [window for key in WINDOW_KEYS if (window := _number(config, key)) is not None]
        return cls(
            token_flops=2.0 * weights,
            pair_flops=4.0 * (_number(config, "num_hidden_layers") or 0) * heads * head_dim,
            pass_tokens=HOST_PASS_TOKENS
            if (device or model.device).type == "cpu"
            else DEVICE_PASS_TOKENS,
            max_shared_tokens=min(windows) if windows else None,
        )

    def plain(self, length: float) -> float:
        """A row under the plain causal mask, whose upper half is never computed."""
        return length * self.token_flops + 0.5 * length * length * self.pair_flops

    def masked(self, length: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows under an explicit mask: every pair is computed, and the mask has its price."""
        return length * ((self.token_flops + self.pair_flops * length) / (1.0 - LEAST_SAVING))


@dataclass(frozen=True, slots=True)
class Row:
    """The samples of one row, by index; several of them share what they have in common.

    `commons[m]`: how many tokens member m has in common with the member before it, 0 for
    the first one. In lexicographic order that is all one needs to lay the samples out as a
    tree: a member's tokens behind its common ones are new columns, the others exist.
    """

    members: tuple[int, ...]
    length: int
    commons: tuple[int, ...] = (0,)

    @property
    def is_shared(self) -> bool:
        """Whether the row needs a mask that keeps branches apart."""
        return len(self.members) > 1


def tree_rows(
    members: Sequence[int],
    lengths: NDArray[np.int64],
    commons: NDArray[np.int64],
    *,
    cost: ModelCost,
    max_tokens: int,
) -> list[Row]:
    """The cheapest rows for samples in lexicographic order: each row is one run of them.

    Exact, by dynamic programming over where the last row begins. A run of samples i .. j
    needs `lengths[i] + sum(lengths[k] - commons[k], k = i+1 .. j)` columns.

    Args:
        members: sample indices, in lexicographic order of their input tokens.
        lengths: [N] per sample its input tokens, >= 1.
        commons: [N] tokens in common with the sample before; the first entry isn't read.
        cost: what a row costs.
        max_tokens: bound on the length of a shared row.
    """
    number = len(members)
    added = np.cumsum(lengths - commons).astype(np.float64)
    begins = lengths - added  # descending; a row from i to j has begins[i] + added[j] columns
    too_long = np.searchsorted(-begins, added - max_tokens, side="left")
    unlike = np.where(commons == 0, np.arange(number), 0)  # going on across one gains nothing
    first = np.minimum(np.maximum(too_long, np.maximum.accumulate(unlike)), np.arange(number))
    cheapest = np.zeros(number + 1)
    origin = np.zeros(number, dtype=np.int64)
    for last, start in enumerate(first.tolist()):
        costs = cost.masked(begins[start : last + 1] + added[last])
        costs += cheapest[start : last + 1]
        costs[-1] = cheapest[last] + cost.plain(float(lengths[last]))
        choice = int(costs.argmin())
        cheapest[last + 1], origin[last] = costs[choice], start + choice
    rows: list[Row] = []
    stop = number
    while stop > 0:
        start = int(origin[stop - 1])
        rows.append(
            Row(
                tuple(members[start:stop]),
                int(begins[start] + added[stop - 1]),
                (0, *commons[start + 1 : stop].tolist()),
            )
        )
        stop = start
    return rows[::-1]


def split_kinds(rows: Sequence[Row], cost: ModelCost) -> list[list[Row]]:
    """Rows that need a mask and rows that don't; too few of these go with the others.

    A row of a model with a window is computed without a mask unless it must have one: the
    mask would take the place of the window.
    """
    shared = [row for row in rows if row.is_shared]
    plain = [row for row in rows if not row.is_shared]
    if cost.max_shared_tokens is None and _is_cheaper_than_a_pass(plain, cost):
        return [shared + plain] if shared else [plain]
    return [plain, shared]


def _is_cheaper_than_a_pass(rows: Sequence[Row], cost: ModelCost) -> bool:
    return sum(row.length for row in rows) <= cost.pass_tokens


def split_rows(rows: Sequence[Row], *, max_tokens: int, pass_tokens: int) -> list[list[Row]]:
    """Micro-batches of similar rows: the split with the least padding plus fixed cost.

    Rows are sorted by length; every micro-batch is one run of that order, with at most
    `max_tokens` padded tokens unless a single row is longer than that.
    """
    ordered = sorted(rows, key=lambda row: (-row.length, row.members))
    if not ordered:
        return []
    lengths, first = np.unique([-row.length for row in ordered], return_index=True)
    bounds = np.append(first, len(ordered))  # where each length begins, longest first
    cheapest = np.zeros(len(lengths) + 1)
    stop = np.zeros(len(lengths), dtype=np.int64)
    for start in range(len(lengths) - 1, -1, -1):
        longest = int(-lengths[start])
        num_rows = bounds[start + 1 :] - bounds[start]
        num_passes = -(-num_rows // _rows_per_pass(longest, max_tokens))
        costs = num_rows * longest + pass_tokens * num_passes + cheapest[start + 1 :]
        choice = int(np.argmin(costs))
        cheapest[start], stop[start] = costs[choice], start + 1 + choice
    result: list[list[Row]] = []
    start = 0
    while start < len(lengths):
        run = ordered[bounds[start] : bounds[stop[start]]]
        size = _rows_per_pass(int(-lengths[start]), max_tokens)
        result += [run[i : i + size] for i in range(0, len(run), size)]
        start = int(stop[start])
    return result


def share_out(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Indices by rank: each to the rank with the least so far, longest first; deterministic."""
    loads = [0] * size
    shares: list[list[int]] = [[] for _ in range(size)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min(range(size), key=lambda r: (loads[r], r))
        loads[rank] += lengths[index]
        shares[rank].append(index)
    return [sorted(share) for share in shares]


def _rows_per_pass(length: int, max_tokens: int) -> int:
    return max(1, max_tokens // length)


def _number(config: PreTrainedConfig, key: str) -> int | None:
    """A whole number of the config under its common name; None where the family has none."""
    value = getattr(config, key, None)
    return value if isinstance(value, int) else None


def _parameters(module: nn.Module | None) -> list[nn.Parameter]:
    return [] if module is None else list(module.parameters())
