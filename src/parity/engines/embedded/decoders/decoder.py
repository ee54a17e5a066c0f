"""The contract of a decoder: one model's forward passes over slots, and its two sets of weights.

Implemented by `lean.py` (written by hand for some families) and `generic.py` (any Hugging
Face causal model with a key-value cache). The scheduler calls `prefill` and `decode`, the
engine the weight calls; all of them in the engine's decoding thread, except that `staged`
is filled from outside while decoding goes on. Only `swap` changes what is decoded with.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from parity.engines.embedded.cache import SlotCache


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring slots `start` to `stop` that attend over at most `length` tokens."""

    start: int
    stop: int
    length: int


class Decoder(ABC):
    """Forward passes of one model on one device."""

    name: str
    device: torch.device
    vocabulary_size: int
    uses_spans: bool  # attends span by span; else all slots attend to the longest span

    @property
    @abstractmethod
    def expected(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by name of every tensor of the model, as Hugging Face names them."""

    @abstractmethod
    def new_cache(self) -> SlotCache:
        """An empty cache that fits the model."""

    @abstractmethod
    def prefill(
        self,
        cache: SlotCache,
        *,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        start: int,
        last: torch.Tensor,
    ) -> torch.Tensor:
        """Write the keys and values of prompt tokens; logits [M, V] after each row's last one.

        Args:
            cache: holds the tokens before `start` of these slots already.
            tokens: int64 [M, C], padded on the right with any id.
            slots: int64 [M], all different; one only where `start` > 0.
            start: position of the first column.
            last: int64 [M], the column of each row's last token.
        """

    @abstractmethod
    def decode(
        self,
        cache: SlotCache,
        *,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        spans: Sequence[Span],
    ) -> torch.Tensor:
        """Take one token in each of the first slots; logits [rows, V] after it.

        Args:
            cache: keys and values of the tokens before.
            tokens: int64 [rows] for slots 0 to rows - 1.
            lengths: int64 [rows], tokens each slot holds before this one.
            spans: partition of the slots; a span's length is above each of its `lengths`.
        """

    @abstractmethod
    def served(self) -> Mapping[str, torch.Tensor]:
        """By Hugging Face name what is decoded with, in the shapes of `staged`."""

    @abstractmethod
    def staged(self) -> Mapping[str, torch.Tensor]:
        """By Hugging Face name where the next weights are to be written.

        A destination has as many elements as the named tensor, in the same order, but may
        be viewed in more dimensions; tied names have the same destination.
        """

    @abstractmethod
    def swap(self) -> None:
        """Decode with the staged weights from now on; the old ones are the next to be staged."""

    @abstractmethod
    def drop_staged(self) -> None:
        """Give the memory of the staged weights back; `staged` makes new ones of zeros."""

    @abstractmethod
    def free(self) -> None:
        """Give the memory of all weights back; nothing can be decoded afterwards."""


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by Hugging Face name; tied names give one tensor."""
    return dict(model.state_dict(keep_vars=True))
