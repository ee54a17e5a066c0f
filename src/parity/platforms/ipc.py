"""Device buffers that another process of this machine can read: acquired and released together.

The exporter says `with ipc.export(tensor) as handle` and sends `handle.to_json()` over any
channel; the importer says `with ipc.open(handle, index) as view`. Leaving either block releases
its side. Invariants: a handle is opened once, by one importer (torch counts references so); the
importer's own index is used, because on some runtimes the handle carries the exporter's.
"""

import base64
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Self, TypeVar, cast

from parity.errors import TransferError, UnsupportedError
from parity.types import Json

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")
BYTES = ("memory", "counter", "event")


@dataclass(frozen=True, slots=True)
class IpcHandle:
    """What an importer needs to see the exporter's tensor."""

    device_type: str
    dtype: str  # as torch names it: bfloat16
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    first: int  # element of the storage at which the tensor begins
    memory: bytes  # the runtime's handle of the allocation
    size_bytes: int
    offset_bytes: int  # of the storage inside the allocation
    counter: bytes  # name of the reference counter
    counter_offset: int
    event: bytes  # the runtime's handle of the event after which the data is there
    needs_event: bool

    def to_json(self) -> dict[str, Json]:
        """Plain data, without pickle."""
        plain = asdict(self)
        for name in BYTES:
            plain[name] = base64.b64encode(plain[name]).decode("ascii")
        return {**plain, "shape": list(self.shape), "stride": list(self.stride)}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Self:
        """Raises TransferError for anything that `to_json` doesn't write."""
        names = {each.name for each in fields(cls)}
        if set(value) != names:
            odd = ", ".join(sorted(names ^ set(value)))
            raise TransferError(f"an IPC handle has other fields than it should: {odd}.")
        try:
            return cls(
                device_type=_of(str, value, "device_type"),
                dtype=_of(str, value, "dtype"),
                shape=_sizes(value, "shape"),
                stride=_sizes(value, "stride"),
                first=_of(int, value, "first"),
                memory=_bytes(value, "memory"),
                size_bytes=_of(int, value, "size_bytes"),
                offset_bytes=_of(int, value, "offset_bytes"),
                counter=_bytes(value, "counter"),
                counter_offset=_of(int, value, "counter_offset"),
                event=_bytes(value, "event"),
                needs_event=_of(bool, value, "needs_event"),
            )
        except ValueError as error:
            raise TransferError(f"an IPC handle can't be read: {error}.") from error


class DeviceIpc(ABC):
    """Shares device buffers between processes of one machine."""

    @abstractmethod
    def export(self, tensor: "torch.Tensor") -> AbstractContextManager[IpcHandle]:
        """Offer a tensor to one importer for as long as the block runs.

        The exporter leaves the block when the importer has said that it is done. Raises
        UnsupportedError where the tensor isn't on such a device.
        """

    @abstractmethod
    def open(self, handle: IpcHandle, index: int) -> "AbstractContextManager[torch.Tensor]":
        """See the exporter's tensor on this process's device `index`, the same physical one.

        Raises TransferError where the runtime can't map it.
        """


class StorageIpc(DeviceIpc):
    """Through the storages of torch, which count references across processes."""

    def __init__(self, device_type: str, module: ModuleType | None = None) -> None:
        """`module`: `torch.<device>`, whose `ipc_collect` gives memory back (None: torch's)."""
        self._device_type = device_type
        self._module = module

    @contextmanager
    def export(self, tensor: "torch.Tensor") -> Generator[IpcHandle]:
        """See `DeviceIpc.export`."""
        if tensor.device.type != self._device_type:
            raise UnsupportedError(
                f"a tensor on {tensor.device} was to be shared by device IPC; it must be on"
                f" {self._device_type}."
            )
        storage = tensor.untyped_storage()
        share = getattr(storage, f"_share_{self._device_type}_")
        _, memory, size_bytes, offset_bytes, counter, counter_offset, event, needs_event = share()
        try:
            yield IpcHandle(
                device_type=self._device_type,
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(tensor.shape),
                stride=tuple(tensor.stride()),
                first=int(tensor.storage_offset()),
                memory=memory,
                size_bytes=size_bytes,
                offset_bytes=offset_bytes,
                counter=counter,
                counter_offset=counter_offset,
                event=event,
                needs_event=needs_event,
            )
        finally:
            del storage, tensor
            self._collect()

    @contextmanager
    def open(self, handle: IpcHandle, index: int) -> "Generator[torch.Tensor]":
        """See `DeviceIpc.open`."""
        import torch

        if handle.device_type != self._device_type:
            raise TransferError(
                f"an IPC handle is of a {handle.device_type} device, and this process has"
                f" {self._device_type} ones."
            )
        attach = getattr(torch.UntypedStorage, f"_new_shared_{self._device_type}")
        try:
            storage = attach(
                index,
                handle.memory,
                handle.size_bytes,
                handle.offset_bytes,
                handle.counter,
                handle.counter_offset,
                handle.event,
                handle.needs_event,
            )
        except RuntimeError as error:
            raise TransferError(
                f"device {index} can't map the buffer that was shared: {str(error).splitlines()[0]}"
                " (is it the same physical device in both processes?)."
            ) from error
        device = torch.device(f"{self._device_type}:{index}")
        view = torch.empty(0, dtype=getattr(torch, handle.dtype), device=device)
        view.set_(storage, handle.first, handle.shape, handle.stride)
        try:
            yield view
        finally:
            # Views that outlive the block keep the memory mapped; emptying this one unmaps it.
            view.set_(torch.UntypedStorage(0, device=device))  # pyright: ignore[reportArgumentType]
            del storage
            self._collect()

    def _collect(self) -> None:
        import torch

        module = self._module if self._module is not None else getattr(torch, self._device_type)
        module.ipc_collect()


def _of(kind: type[Value], value: Mapping[str, Json], name: str) -> Value:
    found = value[name]
    if type(found) is not kind:  # a bool isn't a number here
        raise ValueError(f"{name} is {found!r}")
    return cast("Value", found)


def _sizes(value: Mapping[str, Json], name: str) -> tuple[int, ...]:
    found = value[name]
    if not isinstance(found, list) or any(type(size) is not int for size in found):
        raise ValueError(f"{name} is {found!r}")
    return tuple(cast("list[int]", found))


def _bytes(value: Mapping[str, Json], name: str) -> bytes:
    return base64.b64decode(_of(str, value, name), validate=True)
