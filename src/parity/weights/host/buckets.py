"""The two buckets of `zmq_ipc` in memory that several processes of a host see.

Host memory by a file that is mapped (`shared_memory.py`), or the trainer's own device memory by
device IPC where the platform has it. The sender offers, each receiver maps; whatever was acquired
is released: a device handle is opened by one receiver only, and the offer ends when all
receivers have said that they are done with it.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from parity.errors import TransferError
from parity.platforms.facts import Facts
from parity.platforms.ipc import DeviceIpc, IpcHandle
from parity.platforms.platform import Platform
from parity.types import Json
from parity.weights.host.shared_memory import SharedBuffer
from parity.weights.session import wire

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device of this process whose memory another process can see.

    `index` is this process's own number of the device. Sender and receiver must mean the same
    physical one; only the wiring knows.
    """

    ipc: DeviceIpc
    device: torch.device
    index: int
    synchronize: Callable[[], None]  # returns when everything queued on the device is done

    @classmethod
    def of(cls, platform: Platform, facts: Facts, index: int) -> "DeviceMemory | None":
        """Of a platform; None, with the reason in the log, where it has no device IPC."""
        support = platform.ipc_support(facts)
        if support.is_supported is not True:
            log.info("event=weights_through_host_memory reason=%r", support.reason)
            return None
        device = platform.device(index)
        return cls(platform.ipc(), device, index, lambda: platform.synchronize(index))


class Offer(ABC):
    """The sender's side."""

    needs_farewell: bool  # receivers must let go before it ends

    @property
    @abstractmethod
    def memory(self) -> torch.Tensor:
        """uint8 [bytes of both buckets]."""

    @abstractmethod
    def invitation(self) -> wire.Message:
        """What receivers need to map it: the fields of a `map` message."""

    @abstractmethod
    def accepted(self) -> None:
        """Every receiver has mapped it."""

    @abstractmethod
    def seal(self) -> None:
        """Return when what was packed is really there for others."""

    @abstractmethod
    def close(self) -> None:
        """Give it back; may be repeated."""


class Mapped(ABC):
    """A receiver's side."""

    @property
    @abstractmethod
    def memory(self) -> torch.Tensor:
        """uint8 [bytes of both buckets], the sender's."""

    @abstractmethod
    def settle(self) -> None:
        """Return when everything that was read has been read: the bucket may be packed anew."""

    @abstractmethod
    def close(self) -> None:
        """Let go; may be repeated."""


class HostOffer(Offer):
    """Shared memory, whose name is removed as soon as all have mapped it."""

    needs_farewell = False

    def __init__(self, folder: Path, tag: str, size_bytes: int) -> None:
        self._shared = SharedBuffer.create(folder, tag, size_bytes)

    @property
    def memory(self) -> torch.Tensor:
        """Mapped."""
        return self._shared.tensor

    def invitation(self) -> wire.Message:
        """A path."""
        return {"path": str(self._shared.path), "size_bytes": self._shared.size_bytes}

    def accepted(self) -> None:
        """The name has done its work."""
        self._shared.unlink()

    def seal(self) -> None:
        """Nothing: memory of one host is coherent."""

    def close(self) -> None:
        """Unlink and unmap."""
        self._shared.unlink()
        self._shared.close()


class DeviceOffer(Offer):
    """A buffer on the trainer's device, with one handle for each receiver."""

    needs_farewell = True

    def __init__(self, device: DeviceMemory, size_bytes: int, receivers: Sequence[str]) -> None:
        self._device = device
        self._stack = ExitStack()
        memory = torch.zeros(size_bytes, dtype=torch.uint8, device=device.device)
        self._memory: torch.Tensor | None = memory
        self._handles: dict[str, Mapping[str, Json]] = {}
        try:
            for name in receivers:
                handle = self._stack.enter_context(device.ipc.export(memory))
                self._handles[name] = handle.to_json()
        except BaseException:
            self.close()
            raise

    @property
    def memory(self) -> torch.Tensor:
        """On the device."""
        assert self._memory is not None, "the buckets are closed"
        return self._memory

    def invitation(self) -> wire.Message:
        """Each receiver's own handle."""
        return {"handles": self._handles, "size_bytes": self.memory.numel()}

    def accepted(self) -> None:
        """Nothing: there is no name to remove."""

    def seal(self) -> None:
        """Wait for the device: a receiver's stream knows nothing of ours."""
        self._device.synchronize()

    def close(self) -> None:
        """Release every handle, then the memory."""
        self._handles = {}
        self._stack.close()
        self._memory = None


class HostMapped(Mapped):
    """The sender's shared memory."""

    def __init__(self, message: Mapping[str, object]) -> None:
        size = wire.integer(message, "size_bytes")
        self._shared = SharedBuffer.attach(Path(wire.text(message, "path")), size)

    @property
    def memory(self) -> torch.Tensor:
        """Mapped."""
        return self._shared.tensor

    def settle(self) -> None:
        """Nothing: copies of the processor are done when they return."""

    def close(self) -> None:
        """Unmap."""
        self._shared.close()


class DeviceMapped(Mapped):
    """The sender's device memory, by the handle that was made for this receiver."""

    def __init__(self, device: DeviceMemory, handle: IpcHandle, size_bytes: int) -> None:
        self._device = device
        self._stack = ExitStack()
        view = self._stack.enter_context(device.ipc.open(handle, device.index))
        if view.dtype != torch.uint8 or tuple(view.shape) != (size_bytes,):
            self._stack.close()
            raise TransferError(
                f"the sender's device memory is {view.dtype} of shape {tuple(view.shape)}; "
                f"expected are {size_bytes} bytes."
            )
        self._view: torch.Tensor | None = view

    @property
    def memory(self) -> torch.Tensor:
        """On the device."""
        assert self._view is not None, "the mapping is closed"
        return self._view

    def settle(self) -> None:
        """Wait for the device."""
        self._device.synchronize()

    def close(self) -> None:
        """Let go of the sender's memory."""
        self._view = None
        self._stack.close()


def map_buckets(message: Mapping[str, object], name: str, device: DeviceMemory | None) -> Mapped:
    """Map what a sender offers to receiver `name`; raises TransferError where it can't be."""
    handles = message.get("handles")
    if handles is None:
        return HostMapped(message)
    if device is None:
        raise TransferError(
            "the sender's buckets are in device memory and this engine has no device IPC; both "
            "sides must be wired alike."
        )
    handle = handles.get(name) if isinstance(handles, dict) else None
    if not isinstance(handle, dict):
        raise TransferError(f"the sender has no device handle for receiver {name}.")
    size_bytes = wire.integer(message, "size_bytes")
    return DeviceMapped(device, IpcHandle.from_json(handle), size_bytes)
