"""The contract of a transport: makes a version live in every engine, or changes nothing.

`publish` is called by the loop while the trainer stands still. It sends the manifest,
then the tensors, then asks `switch` to run the commit at the moment that `in_flight`
allows. After an error on either side the engines still serve what they served before.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Commit = Callable[[], Awaitable[None]]
Switch = Callable[[Commit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Weights:
    """What the trainer holds: each storage once, and the names that are tied to it."""

    tensors: Sequence[tuple[str, "torch.Tensor"]]
    aliases: tuple[tuple[str, str], ...] = ()


class Transfer(ABC):
    """Sends weights from the trainer to engines."""

    @abstractmethod
    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> None:
        """Make `version` live; raises TransferError (or the engine's) with the old one served."""
