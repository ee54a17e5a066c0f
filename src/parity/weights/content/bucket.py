"""How the tensors of a manifest are laid into buckets of one size, by a fixed rule.

A tensor larger than what is left of a bucket goes on in the next one; a piece starts at a
multiple of 64 bytes, so that views of every dtype are aligned; a tensor without elements
takes no piece. Both ends compute nothing else: the pieces travel with their bucket.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.errors import TransferError
from parity.weights.content.ranges import dtype_named
from parity.weights.manifest import TensorEntry

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements `start` to `start + count` of one tensor, at byte `at` of a bucket."""

    tensor: int  # index into the manifest's entries
    start: int
    count: int
    at: int


def plan(entries: Sequence[TensorEntry], bucket_bytes: int) -> Iterator[tuple[list[Piece], int]]:
    """The pieces of each bucket and the bytes that it fills, in the order of sending."""
    if bucket_bytes < ALIGNMENT or bucket_bytes % ALIGNMENT:
        raise TransferError(
            f"a bucket of {bucket_bytes} bytes can't be used; it must be a multiple of "
            f"{ALIGNMENT}. Set weights.bucket_mib."
        )
    pieces: list[Piece] = []
    at = 0
    for index, entry in enumerate(entries):
        size = dtype_named(entry.dtype).itemsize
        start, total = 0, entry.num_elements
        while start < total:
            at = -(-at // ALIGNMENT) * ALIGNMENT
            if at >= bucket_bytes:
                yield pieces, _filled(pieces, entries)
                pieces, at = [], 0
            count = min(total - start, (bucket_bytes - at) // size)
            pieces.append(Piece(index, start, count, at))
            at += count * size
            start += count
    if pieces:
        yield pieces, _filled(pieces, entries)


def size_bytes(entries: Sequence[TensorEntry]) -> int:
    """Bytes of all tensors, without what alignment adds."""
    return sum(entry.num_elements * dtype_named(entry.dtype).itemsize for entry in entries)


def _filled(pieces: Sequence[Piece], entries: Sequence[TensorEntry]) -> int:
    last = pieces[-1]
    return last.at + last.count * dtype_named(entries[last.tensor].dtype).itemsize
