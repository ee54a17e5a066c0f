"""Elements `start` to `start + n` (row-major) of a tensor with any strides, without copies of it.

Used by both ends of every transport: a tensor larger than a bucket travels in pieces, and
neither a transposed source nor an interleaved destination is ever made contiguous as a whole.
"""

import ctypes

import torch

from parity.errors import TransferError


def dtype_named(word: str) -> torch.dtype:
    """The torch dtype that a manifest names; raises TransferError for any other word."""
    found = getattr(torch, word, None)
    if not isinstance(found, torch.dtype):
        raise TransferError(f"a manifest names the dtype {word!r}, which torch doesn't have.")
    return found


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as uint8, sharing its memory."""
    # A tensor of one element is contiguous whatever its stride is, and a view as bytes wants 1.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def copy_into(target: torch.Tensor, start: int, flat: torch.Tensor) -> None:
    """Write `flat` over the elements of `target` from `start` on, converting the dtype."""
    for part, piece in _pair(target.detach(), start, flat):
        _copy(part, piece)


def copy_from(source: torch.Tensor, start: int, flat: torch.Tensor) -> None:
    """Fill `flat` with the elements of `source` from `start` on, converting the dtype."""
    for part, piece in _pair(source.detach(), start, flat):
        _copy(piece, part)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    is_plain = target.dtype == source.dtype and target.is_cpu and source.is_cpu
    if is_plain and target.is_contiguous() and source.is_contiguous():
        # memmove is about 1.4 times as fast as torch's loop for large plain ranges.
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
    else:
        target.copy_(source)


def _pair(
    tensor: torch.Tensor, start: int, flat: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Parts of `tensor` and the pieces of `flat` that stand for them, of equal shape."""
    count = flat.numel()
    if count == 0:
        return []
    if tensor.is_contiguous():
        return [(tensor.view(-1)[start : start + count], flat)]
    row = tensor[0].numel()
    first, skip = divmod(start, row)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    done = 0
    if skip:
        done = min(count, row - skip)
        pairs += _pair(tensor[first], skip, flat[:done])
        first += 1
    if whole := (count - done) // row:
        rows = tensor[first : first + whole]
        pairs.append((rows, flat[done : done + whole * row].view(rows.shape)))
        done += whole * row
        first += whole
    if done < count:
        pairs += _pair(tensor[first], 0, flat[done:])
    return pairs
