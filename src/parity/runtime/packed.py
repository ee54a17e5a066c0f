"""Samples in columns, for the way from the driver to the trainer's ranks.

A step's samples are millions of small Python numbers; as arrays they are pickled once, copied as
memory, and read by all ranks of a host from one place. Nothing is rounded: floats stay float64.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from parity.types import Sample


@dataclass(frozen=True, slots=True)
class PackedSamples:
    """Samples end to end: [sum of L] per token, [number of samples] per sample."""

    groups: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tokens: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float64]
    versions: NDArray[np.int64]
    advantages: NDArray[np.float64]


def pack(samples: Sequence[Sample]) -> PackedSamples:
    """The columns of some samples."""
    lengths = np.array([len(sample.tokens) for sample in samples], np.int64)
    total = int(lengths.sum())

    def column(of: Callable[[Sample], Iterable[float]], dtype: type) -> NDArray[np.generic]:
        return np.fromiter(chain.from_iterable(map(of, samples)), dtype, total)

    return PackedSamples(
        groups=np.array([sample.group for sample in samples], np.int64),
        lengths=lengths,
        tokens=column(lambda sample: sample.tokens, np.int64),  # pyright: ignore[reportArgumentType]
        loss_mask=column(lambda sample: sample.loss_mask, np.bool_),  # pyright: ignore[reportArgumentType]
        logprobs=column(lambda sample: sample.logprobs, np.float64),  # pyright: ignore[reportArgumentType]
        versions=column(lambda sample: sample.versions, np.int64),  # pyright: ignore[reportArgumentType]
        advantages=column(lambda sample: sample.advantages, np.float64),  # pyright: ignore[reportArgumentType]
    )


def unpack(packed: PackedSamples) -> list[Sample]:
    """The samples again, equal to what was packed."""
    ends = np.cumsum(packed.lengths).tolist()
    tokens, mask = packed.tokens.tolist(), packed.loss_mask.tolist()
    logprobs, versions = packed.logprobs.tolist(), packed.versions.tolist()
    advantages = packed.advantages.tolist()
    return [
        Sample(
            group=group,
            tokens=tuple(tokens[end - length : end]),
            loss_mask=tuple(mask[end - length : end]),
            logprobs=tuple(logprobs[end - length : end]),
            versions=tuple(versions[end - length : end]),
            advantages=tuple(advantages[end - length : end]),
        )
        for group, length, end in zip(
            packed.groups.tolist(), packed.lengths.tolist(), ends, strict=True
        )
    ]
