"""Device IPC inside one process, as strict as a real one: for the tests of both ends.

The importer sees another memory than the exporter, which gets the exporter's bytes only when the
exporter synchronizes; a handle can be opened once; one whose exporter has let go, or is dead,
can't be opened; an exporter that lets go while a view is open is a fault.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from parity.errors import TransferError
from parity.platforms.ipc import DeviceIpc, IpcHandle
from parity.weights.host.buckets import DeviceMemory


@dataclass
class FakeIpc(DeviceIpc):
    """Counts what is acquired and released."""

    exported: int = 0
    released: int = 0
    opened: int = 0
    closed: int = 0
    settled: int = 0  # by importers
    is_exporter_dead: bool = False
    faults: list[str] = field(default_factory=list[str])
    _live: dict[bytes, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _open: set[bytes] = field(default_factory=set)

    @contextmanager
    def export(self, tensor: torch.Tensor) -> Generator[IpcHandle]:
        self.exported += 1
        key = b"handle %d" % self.exported
        self._live[key] = (tensor, torch.zeros_like(tensor))
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        size = tensor.numel()
        try:
            yield IpcHandle(
                "cpu", "uint8", shape, stride, 0, key, size, 0, b"counter", 0, b"event", True
            )
        finally:
            if key in self._open:
                self.faults.append(f"{key!r} was released while it was open")
            del self._live[key]
            self.released += 1

    @contextmanager
    def open(self, handle: IpcHandle, index: int) -> Generator[torch.Tensor]:
        if self.is_exporter_dead or handle.memory not in self._live:
            raise TransferError(f"device {index} can't map the buffer that was shared.")
        if handle.memory in self._open:
            self.faults.append(f"{handle.memory!r} was opened twice")
        self.opened += 1
        self._open.add(handle.memory)
        try:
            yield self._live[handle.memory][1]
        finally:
            self._open.remove(handle.memory)
            self.closed += 1

    @property
    def is_balanced(self) -> bool:
        """Whether everything that was acquired was released, in order."""
        pairs = ((self.exported, self.released), (self.opened, self.closed))
        return not self.faults and all(left == right > 0 for left, right in pairs)

    def exporter(self) -> DeviceMemory:
        """The trainer's device."""
        return DeviceMemory(self, torch.device("cpu"), 0, self._push)

    def importer(self) -> DeviceMemory:
        """An engine's."""
        return DeviceMemory(self, torch.device("cpu"), 0, self._settle)

    def _push(self) -> None:
        for source, view in list(self._live.values()):
            view.copy_(source)

    def _settle(self) -> None:
        self.settled += 1
