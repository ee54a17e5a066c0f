"""What a trainer asks of its ranks, and the answer of one that is alone.

All ranks call the same methods in the same order with the same batch. Invariants: every
rank computes equally many passes of each kind, because a sharded model's passes are
collective; sums are the same number on every rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


class Ranks(ABC):
    """The ranks of one trainer, seen from one of them."""

    rank: int
    size: int

    @abstractmethod
    def shard(self, scorer: nn.Module, *, model: nn.Module) -> None:
        """Spread the parameters of `scorer`, which holds `model`, over the ranks, in place."""

    @abstractmethod
    def add(self, values: Tensor) -> Tensor:
        """The sum over ranks of a tensor of one shape, on every rank."""

    @abstractmethod
    def whole(self, tensor: Tensor) -> Tensor:
        """The full tensor of a sharded one, on every rank; any other as it is."""

    @abstractmethod
    def spread(self, tensor: Tensor, *, like: Tensor) -> Tensor:
        """This rank's view of a full tensor that every rank holds, laid out as `like`."""

    @abstractmethod
    def save(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors, sharded ones by all ranks together, into a folder."""

    @abstractmethod
    def load(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Copy what `save` wrote into tensors, whatever the number of ranks was then."""


class Alone(Ranks):
    """One rank: nothing is spread and nothing travels."""

    rank, size = 0, 1

    def shard(self, scorer: nn.Module, *, model: nn.Module) -> None:
        """Leave everything where it is."""

    def add(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def whole(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def spread(self, tensor: Tensor, *, like: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def save(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write the tensors by this process alone."""
        save(dict(tensors), checkpoint_id=folder, no_dist=True)

    def load(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Read the tensors by this process alone."""
        load(dict(tensors), checkpoint_id=folder, no_dist=True)
