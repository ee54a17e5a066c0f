"""Which samples share a row and which rows share a micro-batch; used by `packing.py`.

Pure arithmetic on lengths (no tensors): a row is either one sample or one prompt followed by
the responses of several siblings, whichever needs fewer floating-point operations; a
micro-batch is a set of rows of similar length. Neither choice changes a result, only its cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

HOST_PASS_TOKENS = 128  # fixed cost of one more pass where the CPU computes, in tokens
DEVICE_PASS_TOKENS = 1024  # the same where a device waits for launches
LEAST_SAVING = 0.05  # of a group's cost; below it a shared row isn't worth its mask
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
    def of(cls, model: PreTrainedModel) -> "ModelCost":
        """The cost of a Hugging Face causal language model, from its shapes."""
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
            pass_tokens=HOST_PASS_TOKENS if model.device.type == "cpu" else DEVICE_PASS_TOKENS,
            max_shared_tokens=min(windows) if windows else None,
        )

    def plain(self, length: int) -> float:
        """A row under the plain causal mask, whose upper half is never computed."""
        return length * self.token_flops + 0.5 * length * length * self.pair_flops

    def masked(self, length: int) -> float:
        """A row under an explicit mask: every pair is computed."""
        return length * self.token_flops + length * length * self.pair_flops


@dataclass(frozen=True, slots=True)
class Row:
    """The samples of one row, by index; more than one means that they share their prompt."""

    members: tuple[int, ...]
    length: int

    @property
    def is_shared(self) -> bool:
        """Whether the row needs a mask that keeps siblings apart."""
        return len(self.members) > 1


def share_rows(
    members: Sequence[int],
    lengths: Sequence[int],
    *,
    num_prompt_tokens: int,
    cost: ModelCost,
    max_tokens: int,
) -> list[Row]:
    """The cheapest rows for siblings with one prompt: all in one, in several, or each alone.

    Args:
        members: sample indices of the siblings.
        lengths: per sibling its input tokens, prompt included (>= `num_prompt_tokens`).
        num_prompt_tokens: length of the common prompt, >= 1.
        cost: what a row costs.
        max_tokens: bound on the length of a shared row.
    """
    alone = [Row((member,), length) for member, length in zip(members, lengths, strict=True)]
    window = cost.max_shared_tokens
    if len(alone) < 2 or (window is not None and max(lengths) > window):
        return alone
    best, least = alone, (1.0 - LEAST_SAVING) * sum(cost.plain(row.length) for row in alone)
    for num_rows in range(1, len(alone)):
        rows = _shared_rows(alone, num_rows, num_prompt_tokens)
        if any(row.is_shared and row.length > max_tokens for row in rows):
            continue
        total = sum(cost.masked(r.length) if r.is_shared else cost.plain(r.length) for r in rows)
        if total < least:
            best, least = rows, total
    return best


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


def _rows_per_pass(length: int, max_tokens: int) -> int:
    return max(1, max_tokens // length)


def _shared_rows(alone: Sequence[Row], num_rows: int, num_prompt_tokens: int) -> list[Row]:
    """`alone` in `num_rows` rows of nearly equal numbers of siblings, prompt counted once."""
    rows: list[Row] = []
    for part in range(num_rows):
        begin, end = part * len(alone) // num_rows, (part + 1) * len(alone) // num_rows
        siblings = alone[begin:end]
        length = num_prompt_tokens + sum(row.length - num_prompt_tokens for row in siblings)
        rows.append(Row(tuple(row.members[0] for row in siblings), length))
    return rows


def _number(config: PreTrainedConfig, key: str) -> int | None:
    """A whole number of the config under its common name; None where the family has none."""
    value = getattr(config, key, None)
    return value if isinstance(value, int) else None


def _parameters(module: nn.Module | None) -> list[nn.Parameter]:
    return [] if module is None else list(module.parameters())
