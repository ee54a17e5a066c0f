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
    def allocate(self, scorer: nn.Module) -> None:
        """Give memory to what this rank holds of a spread model that has none (meta device).

        Its contents are whatever was there. Tied parameters stay one.
        """

    @abstractmethod
    def rest(self, scorer: nn.Module) -> None:
        """Give up what a pass without gradient gathered: `parameters()` are the parts again."""

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
    def stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the host of what this rank holds, for `write`; all ranks together."""

    @abstractmethod
    def write(self, folder: Path, staged: Mapping[str, Tensor]) -> None:
        """As `save`, of what `stage` gave, in any thread of each rank, beside training; one at a
        time.
        """

    @abstractmethod
    def load(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Copy what `save` wrote into tensors, whatever the number of ranks was then."""


class Alone(Ranks):
    """One rank: nothing is spread and nothing travels."""

    rank, size = 0, 1

    def shard(self, scorer: nn.Module, *, model: nn.Module) -> None:
        """Leave everything where it is."""

    def allocate(self, scorer: nn.Module) -> None:
        """Nothing: a model of one rank is loaded whole."""
        assert not any(p.is_meta for p in scorer.parameters()), "one rank loads the model whole"

    def rest(self, scorer: nn.Module) -> None:
        """Nothing was gathered."""

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

    def stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the host."""
        return {name: host_copy(tensor) for name, tensor in tensors.items()}

    def write(self, folder: Path, staged: Mapping[str, Tensor]) -> None:
        """The same as `save`: nothing travels."""
        self.save(folder, staged)

    def load(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Read the tensors by this process alone."""
        load(dict(tensors), checkpoint_id=folder, no_dist=True)


def host_copy(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in memory of their own on the host."""
    return tensor.detach().to("cpu", copy=True)
