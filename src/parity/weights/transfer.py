"""The contract of a transport: makes a version live in every engine, or changes nothing.

`publish` is called by the loop while the trainer stands still. It is one transaction:

    begin(manifest) -> buckets -> verify -> switch(commit)      or      abort(reason)

`switch` runs the commit at the moment that `in_flight` allows. After a refusal or an error on
either side the engines still serve what they served before, and both sides know the reason.
The one thing that no protocol can undo: an engine that dies between its `verified` and its
`committed`, while another one has committed; then the error says which engine serves what.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parity.weights.config import Verify

if TYPE_CHECKING:
    import torch

    from parity.weights.session.canary import Canary

Commit = Callable[[], Awaitable[None]]
Switch = Callable[[Commit], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Weights:
    """What the trainer holds: each storage once, and the names that are tied to it.

    Tensors may be sharded (DTensor); then every rank of the trainer publishes, in step, and
    rank 0 sends.
    """

    tensors: Sequence[tuple[str, "torch.Tensor"]]
    aliases: tuple[tuple[str, str], ...] = ()
    buffers: Collection[str] = ()  # which of the names are buffers
    canary: "Canary | None" = None  # what weights.verify=canary compares


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What a publication moved, and where its time went."""

    version: int
    size_bytes: int  # of all tensors, once, however many engines took them
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])  # by phase
    verified: Verify = "off"  # what was compared before the commit
    wire_bytes: int | None = None  # what travelled, where that is less (delta); None: the same

    def metrics(self) -> dict[str, float | None]:
        """The `publish/` metrics."""
        moving_s = self.seconds.get("buckets")
        rate = self.size_bytes / moving_s / 1e9 if moving_s else None
        return {
            "publish/version": self.version,
            "publish/bytes": self.size_bytes,
            "publish/wire_bytes": self.size_bytes if self.wire_bytes is None else self.wire_bytes,
            "publish/gigabytes_per_s": rate,
            "publish/begin_s": self.seconds.get("begin"),
            "publish/buckets_s": moving_s,
            "publish/verify_s": self.seconds.get("verify"),
            "publish/commit_s": self.seconds.get("commit"),
        }


class Transfer(ABC):
    """Sends weights from the trainer to engines."""

    @abstractmethod
    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> PublishReport:
        """Make `version` live; raises TransferError (or the engine's) with the old one served."""

    async def close(self) -> None:
        """Give back sockets, memory and files; nothing of this transfer is left."""
        return
