"""Tensors at rest: their bytes lie elsewhere and their memory is free, until they come back.

Used by those who take turns on a device: the engine (`sleep`) and the trainer (`offload`). What
rests is a storage, not a tensor: parameters, shards and views of it stay the objects that they
are, and hold the same bits again after `take_back`. In between nobody may read them.

    device        where the bytes rest                            what is given up
    accelerator   memory of the host, page-locked if possible     the storage's block
    CPU           a file without a name in `folder`, since the    the pages behind the storage,
                  host's memory is the device here                which keeps its addresses

Invariant: whatever fails, each storage is whole in one place: `put` frees nothing before
everything is copied, and `take_back` forgets nothing before everything is back.
"""

import ctypes
import logging
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, UntypedStorage

from parity.platforms.memory.resident import release_pages

log = logging.getLogger(__name__)

FAULTS = (OSError, RuntimeError, MemoryError)  # how a disk or a memory says that it is full


@dataclass(frozen=True, slots=True)
class _Resting:
    """One storage, and where its bytes lie."""

    storage: UntypedStorage
    offset: int
    size_bytes: int


class Shelf:
    """Storages of one device that are put aside together and come back together."""

    def __init__(self, device: torch.device, *, folder: Path | None = None) -> None:
        """`folder` is where a CPU's tensors rest; None: the system's folder for such files."""
        self._device = device
        self._folder = folder
        self._place: _Place | None = None
        self._resting: dict[int, _Resting] = {}  # by identity of the storage, which is held here

    @property
    def size_bytes(self) -> int:
        """What rests now."""
        return sum(each.size_bytes for each in self._resting.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing rests."""
        return not self._resting

    def put(self, tensors: Iterable[Tensor]) -> None:
        """Copy the storages of `tensors` that are on the device aside and free their memory.

        Raises one of FAULTS where they don't fit there; nothing has changed then.
        """
        if self._resting:
            raise AssertionError("put on a shelf that isn't empty")
        storages = {id(each): each for each in (tensor.untyped_storage() for tensor in tensors)}
        resting: dict[int, _Resting] = {}
        offset = 0
        place = self._opened()
        try:
            for key, storage in storages.items():
                if storage.device.type == self._device.type and storage.nbytes():
                    resting[key] = _Resting(storage, offset, storage.nbytes())
                    _check_can_rest(storage)
                    place.write(offset, storage)
                    offset += storage.nbytes()
        except BaseException:
            place.clear()
            raise
        self._resting = resting
        try:
            for each in resting.values():
                _give_up(each.storage)
        except BaseException:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Give all of them their memory and their bits again.

        Raises one of FAULTS where the device has too little memory; all of them rest on then.
        """
        if self.is_empty:
            return
        place = self._opened()
        try:
            for each in self._resting.values():
                if each.storage.nbytes() == 0:
                    each.storage.resize_(each.size_bytes)
                place.read(each.offset, each.storage)
        except BaseException:
            for each in self._resting.values():
                _give_up(each.storage)
            raise
        self.forget()

    def forget(self) -> None:
        """Free what rests, for ever: its tensors aren't wanted any more."""
        self._resting = {}
        if self._place is not None:
            self._place.clear()

    def value(self, tensor: Tensor) -> Tensor:
        """What `tensor` held when it was put aside (to be read only), or itself where it wasn't."""
        found = self._resting.get(id(tensor.untyped_storage()))
        if found is None:
            return tensor
        copied = torch.empty(found.size_bytes, dtype=torch.uint8).untyped_storage()
        self._opened().read(found.offset, copied)
        shaped = torch.empty(0, dtype=tensor.dtype)
        return shaped.set_(copied, tensor.storage_offset(), tensor.shape, tensor.stride())

    def close(self) -> None:
        """Free what rests, and the file."""
        self.forget()
        if self._place is not None:
            self._place.close()
            self._place = None

    def _opened(self) -> "_Place":
        if self._place is None:
            self._place = _File(self._folder) if self._device.type == "cpu" else _Host()
        return self._place


class _Place(ABC):
    """Where bytes rest, by offset."""

    @abstractmethod
    def write(self, offset: int, storage: UntypedStorage) -> None:
        """Keep the bytes of `storage`."""

    @abstractmethod
    def read(self, offset: int, storage: UntypedStorage) -> None:
        """Fill `storage` with what was written at `offset`."""

    @abstractmethod
    def clear(self) -> None:
        """Free everything that was written."""

    @abstractmethod
    def close(self) -> None:
        """Give up the place."""


class _File(_Place):
    """A file that has no name: it is gone with the process, however that ends.

    It is written and read, not mapped, so that none of it counts as memory of the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (`close`)

    def write(self, offset: int, storage: UntypedStorage) -> None:
        left = _memory_of(storage)
        while left:
            count = os.pwrite(self._file.fileno(), left, offset)
            left, offset = left[count:], offset + count

    def read(self, offset: int, storage: UntypedStorage) -> None:
        left = _memory_of(storage)
        while left:
            count = os.preadv(self._file.fileno(), [left], offset)
            if count == 0:
                raise OSError(f"the file of resting tensors ends at byte {offset}")
            left, offset = left[count:], offset + count

    def clear(self) -> None:
        self._file.truncate(0)

    def close(self) -> None:
        self._file.close()


class _Host(_Place):
    """Memory of the host; torch keeps page-locked memory for the next turn."""

    def __init__(self) -> None:
        self._is_locked = True
        self._buffers: dict[int, Tensor] = {}

    def write(self, offset: int, storage: UntypedStorage) -> None:
        buffer = self._buffers[offset] = self._new(storage.nbytes())
        buffer.copy_(_bytes_of(storage))

    def read(self, offset: int, storage: UntypedStorage) -> None:
        _bytes_of(storage).copy_(self._buffers[offset])

    def clear(self) -> None:
        self._buffers.clear()

    def close(self) -> None:
        self.clear()

    def _new(self, size_bytes: int) -> Tensor:
        if self._is_locked:
            try:
                return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._is_locked = False
                log.warning("event=memory_not_locked reason=%s; copies are slower", error)
        return torch.empty(size_bytes, dtype=torch.uint8)


def _check_can_rest(storage: UntypedStorage) -> None:
    if storage.device.type != "cpu" and not storage.resizable():
        raise RuntimeError(
            f"a block of {storage.nbytes()} bytes on {storage.device} belongs to somebody else"
            " (another process, or another library) and can't be given up"
        )


def _give_up(storage: UntypedStorage) -> None:
    """Free the memory of a storage; on a CPU its addresses stay, with nothing behind them."""
    if storage.device.type == "cpu":
        release_pages(storage.data_ptr(), storage.nbytes())
    else:
        storage.resize_(0)


def _bytes_of(storage: UntypedStorage) -> Tensor:
    """The whole storage as uint8 [bytes]."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _memory_of(storage: UntypedStorage) -> memoryview:
    """The bytes of a storage of the host, by address; valid as long as the storage is.

    Not through numpy: torch never frees or resizes again what numpy has seen.
    """
    array = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    return memoryview(array).cast("B")
