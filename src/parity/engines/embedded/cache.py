"""The keys and values of the requests that are being decoded: one slot per request.

Used by the decoders (which write and read) and the scheduler (which moves slots). Memory
grows as slots and lengths are needed and is kept afterwards. Every element is finite at any
time, because a masked position still takes part in the weighted sum with weight 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_LENGTH_STEP = 16  # keeps rows aligned
_STRIDE_TRAP = 256  # a multiple of this many elements maps whole columns onto a few cache sets


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps per token."""

    heads: int
    key_dim: int
    value_dim: int


class SlotCache:
    """Keys and values by layer and slot.

    `keys[layer]` is [slots, heads, length, key_dim], or [slots, heads, key_dim, length] where
    `keys_transposed`; `values[layer]` is [slots, heads, length, value_dim].
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        *,
        keys_transposed: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shapes = tuple(shapes)
        self.keys_transposed = keys_transposed
        self._dtype = dtype
        self._device = device
        self.num_slots = 0
        self.length = 0
        self.keys = [self._empty_keys(shape, 0, 0) for shape in self._shapes]
        self.values = [self._empty_values(shape, 0, 0) for shape in self._shapes]

    @property
    def size_bytes(self) -> int:
        """Memory that is held now."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def reserve(self, *, slots: int, length: int, planned_length: int) -> None:
        """Make room for `slots` slots of `length` tokens, and some more up to `planned_length`.

        Doubling keeps copies rare; the plan keeps a short need from taking much memory.
        """
        if slots <= self.num_slots and length <= self.length:
            return
        if length > self.length:
            length = max(length, min(planned_length, 2 * length))
            length += -length % _LENGTH_STEP
            length += _LENGTH_STEP if length % _STRIDE_TRAP == 0 else 0
        self._resize(max(slots, self.num_slots), max(length, self.length))

    def copy(self, sources: Sequence[int], targets: Sequence[int], *, length: int) -> None:
        """Copy the first `length` tokens of slots to other slots, all at once.

        A slot may be both a source and a target: what it held before is what is copied.
        """
        if not sources or length == 0:
            return
        source = torch.tensor(sources, device=self._device)
        target = torch.tensor(targets, device=self._device)
        for keys, values in zip(self.keys, self.values, strict=True):
            if self.keys_transposed:
                keys[target, :, :, :length] = keys[source, :, :, :length]
            else:
                keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]

    def _resize(self, slots: int, length: int) -> None:
        """Reallocate layer by layer, so that only one layer is held twice at a time."""
        old_slots, old_length = self.num_slots, self.length
        for layer, shape in enumerate(self._shapes):
            keys = self._empty_keys(shape, slots, length)
            values = self._empty_values(shape, slots, length)
            if self.keys_transposed:
                keys[:old_slots, :, :, :old_length] = self.keys[layer]
            else:
                keys[:old_slots, :, :old_length] = self.keys[layer]
            values[:old_slots, :, :old_length] = self.values[layer]
            self.keys[layer], self.values[layer] = keys, values
        self.num_slots, self.length = slots, length

    def _empty_keys(self, shape: LayerShape, slots: int, length: int) -> torch.Tensor:
        if self.keys_transposed:
            return self._zeros(slots, shape.heads, shape.key_dim, length)
        return self._zeros(slots, shape.heads, length, shape.key_dim)

    def _empty_values(self, shape: LayerShape, slots: int, length: int) -> torch.Tensor:
        return self._zeros(slots, shape.heads, length, shape.value_dim)

    def _zeros(self, *size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=self._dtype, device=self._device)
