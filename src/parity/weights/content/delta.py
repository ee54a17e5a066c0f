"""A tensor as what changed in its bytes: `xor` against the old ones, or `overwrite` of elements.

Both work on bytes, so NaN payloads, signed zeros and integers survive; both are compressed with
zstd. `xor` suits updates that touch every element a little (equal high bytes become zeros);
`overwrite` suits updates that touch few elements. Unchanged tensors have no delta at all.
"""

from typing import Literal

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray

from parity.errors import TransferError
from parity.weights.content.ranges import bytes_of

Encoding = Literal["xor", "overwrite"]
_LEVEL = 1
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def encode(new: torch.Tensor, old: torch.Tensor, encoding: Encoding) -> bytes | None:
    """What turns `old` into `new` (contiguous, on the host, of one dtype and size); None: nothing.

    The result begins with the number of bytes it unpacks to, so that unpacking is bounded.
    """
    ours, theirs = bytes_of(new).numpy(), bytes_of(old).numpy()
    if np.array_equal(ours, theirs):
        return None
    if encoding == "xor":
        # Byte k of all elements side by side: those that didn't change make long runs of zeros.
        size = new.element_size()
        planes = np.bitwise_xor(ours, theirs).reshape(-1, size).T
        return _squeeze(np.ascontiguousarray(planes).tobytes())
    before, after = _elements(theirs, old), _elements(ours, new)
    changed = np.flatnonzero((before != after).any(axis=1))
    gaps = np.diff(changed, prepend=0).astype("<i8")
    header = np.array([len(changed)], dtype="<i8").tobytes()
    return _squeeze(header + gaps.tobytes() + after[changed].tobytes())


def decode(delta: bytes, base: torch.Tensor, encoding: Encoding) -> torch.Tensor:
    """The new tensor [n], a copy; raises TransferError for what no `encode` made of this base."""
    base = base.detach().contiguous().view(-1)
    new = base.clone()
    target = bytes_of(new).numpy()
    size = base.element_size()
    data = _unsqueeze(delta, limit=16 + (8 + size) * base.numel())
    if encoding == "xor":
        if len(data) != len(target):
            raise TransferError(f"a delta has {len(data)} bytes for a tensor of {len(target)}.")
        planes = np.frombuffer(data, dtype=np.uint8).reshape(size, -1)
        np.bitwise_xor(target, planes.T.reshape(-1), out=target)
        return new
    count = int(np.frombuffer(data[:8], dtype="<i8")[0]) if len(data) >= 8 else -1
    if count < 0 or len(data) != 8 + count * (8 + size):
        raise TransferError(f"a delta of {len(data)} bytes can't hold {count} changed elements.")
    places = np.cumsum(np.frombuffer(data, dtype="<i8", count=count, offset=8))
    if count and not 0 <= places.min() <= places.max() < base.numel():
        raise TransferError("a delta changes elements that the tensor doesn't have.")
    values = np.frombuffer(data, dtype=np.uint8, offset=8 + 8 * count).reshape(count, size)
    target.reshape(-1, size)[places] = values
    return new


def _elements(data: "NDArray[np.uint8]", tensor: torch.Tensor) -> "NDArray[np.generic]":
    """Bytes as [elements, words of an element], the widest words that fit."""
    size = tensor.element_size()
    word = max(width for width in _WORDS if size % width == 0)
    return data.view(_WORDS[word]).reshape(-1, size // word)


def _squeeze(data: bytes) -> bytes:
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    return len(data).to_bytes(8, "little") + packed


def _unsqueeze(delta: bytes, *, limit: int) -> bytes:
    size = int.from_bytes(delta[:8], "little")
    if size > limit:
        raise TransferError(f"a delta unpacks to {size} bytes; this tensor allows {limit}.")
    try:
        # zstd allocates what the frame itself announces, so that has to agree first.
        if size and zstandard.frame_content_size(delta[8:]) != size:
            raise TransferError(f"a delta says {size} bytes and its packed part says otherwise.")
        data = zstandard.ZstdDecompressor().decompress(delta[8:], max_output_size=size)
    except zstandard.ZstdError as error:
        raise TransferError(f"a delta can't be unpacked ({error}).") from error
    if len(data) != size:
        raise TransferError(f"a delta unpacks to {len(data)} bytes and says {size}.")
    return data
