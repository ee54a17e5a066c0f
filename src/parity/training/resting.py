"""What of a trainer rests elsewhere while others use its device, and who may ask for what then.

Used by `trainer.py` for `offload` and `reload`. Weights and state (moments, gradients) are put
aside apart, because a publication needs the weights alone. Invariant: whatever a call needs is
there, or it is refused: on a CPU, memory that was given up would read as zeros.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from parity.errors import TrainingError
from parity.platforms.memory.resident import give_back
from parity.platforms.memory.shelf import FAULTS, Shelf


class Resting:
    """The shelves of one trainer."""

    def __init__(self, device: torch.device, *, folder: Path | None) -> None:
        """`folder` is where the state rests if the device is a CPU."""
        self._device = device
        self._weights = Shelf(device, folder=folder)
        self._state = Shelf(device, folder=folder)

    def offload(self, *, weights: Iterable[Tensor], state: Iterable[Tensor]) -> None:
        """Put aside what isn't yet; raises TrainingError, with all in place, where that fails."""
        for shelf, tensors in ((self._state, state), (self._weights, weights)):
            if not shelf.is_empty:
                continue
            try:
                shelf.put(map(_local, tensors))
            except FAULTS as error:
                raise TrainingError(
                    f"the trainer can't give up its device: its state can't be put aside"
                    f" ({type(error).__name__}: {error}); weights and optimizer are unchanged. Make"
                    " room where it rests (the run folder on a CPU, the host's memory elsewhere),"
                    " or set placement.kind=apart."
                ) from error
        give_back(self._device)

    def reload(self) -> None:
        """Take everything back; raises TrainingError, with all at rest, where memory is short."""
        for shelf in (self._weights, self._state):
            size = shelf.size_bytes
            try:
                shelf.take_back()
            except FAULTS as error:
                give_back(self._device)
                raise TrainingError(
                    f"the trainer can't take its device: {size / 2**20:.0f} MiB of weights or"
                    f" optimizer state don't come back ({type(error).__name__}: {error}). They"
                    " rest on unchanged; free memory on the device, or set placement.kind=apart."
                ) from error

    def check(self, what: str, *, needs_state: bool = True) -> None:
        """Refuse (TrainingError) `what` while something that it needs rests elsewhere."""
        if not self._weights.is_empty or (needs_state and not self._state.is_empty):
            raise TrainingError(
                f"{what} was asked of a trainer whose weights or optimizer state rest elsewhere;"
                " call reload() first."
            )


def _local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
