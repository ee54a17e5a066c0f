"""A shared-memory file that is really there: reserved, touched, private, gone afterwards.

Creation asks the kernel for every page (`posix_fallocate`), because a file that is only
promised kills the process that writes to it (SIGBUS). The name is removed as soon as every
receiver has mapped the file; until then a lock shows that its maker lives.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import stat
from pathlib import Path

import torch

from parity.errors import TransferError
from parity.weights.host.endpoints import is_held

_MIB = 2**20
_TRIES = 16


class SharedBuffer:
    """`size_bytes` bytes that several processes of one host see."""

    def __init__(self, path: Path, file: int, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._file = file
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._map: mmap.mmap | None = mmap.mmap(file, size_bytes, flags=flags)
        self._tensor: torch.Tensor | None = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def create(cls, folder: Path, tag: str, size_bytes: int) -> "SharedBuffer":
        """A new one whose memory is reserved.

        Raises TransferError with what is needed and what there is, where it doesn't fit.
        """
        _remove_leftovers(folder, tag)
        path, file = _new_file(folder, tag)
        try:
            os.posix_fallocate(file, 0, size_bytes)
            return cls(path, file, size_bytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(file)
            raise _too_little(folder, size_bytes, error) from error

    @classmethod
    def attach(cls, path: Path, size_bytes: int) -> "SharedBuffer":
        """The one that another process made."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TransferError(
                f"the sender's shared memory {path} can't be opened ({error.strerror}); both sides "
                "must be on one host and see one weights.shared_memory_dir."
            ) from error
        info = os.fstat(file)
        if info.st_size != size_bytes or info.st_uid != os.getuid():
            os.close(file)
            raise TransferError(
                f"{path} has {info.st_size} bytes and belongs to user {info.st_uid}; expected are "
                f"{size_bytes} bytes of user {os.getuid()}."
            )
        return cls(path, file, size_bytes)

    @property
    def tensor(self) -> torch.Tensor:
        """The memory as uint8 [size_bytes]."""
        assert self._tensor is not None, "the buffer is closed"
        return self._tensor

    def unlink(self) -> None:
        """Remove the name; the memory lives as long as someone has it mapped."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give up this side's mapping; may be repeated."""
        self._tensor = None
        self._map = None  # unmapped when the last view of it is gone
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _new_file(folder: Path, tag: str) -> tuple[Path, int]:
    """An empty file of this user with its lock held."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(_TRIES):
        path = folder / f"{tag}-{secrets.token_hex(4)}"
        try:
            file = os.open(path, flags, 0o600)
        except OSError as error:
            raise TransferError(
                f"shared memory can't be made in {folder} ({error.strerror}); "
                "set weights.shared_memory_dir."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # at most an instant: somebody looks for leftovers
            if path.exists():  # else another run took it for one before it was locked
                return path, file
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(file)
            raise TransferError(
                f"{path} can't be locked ({error.strerror}); set weights.shared_memory_dir."
            ) from error
        os.close(file)
    raise TransferError(f"other runs removed new files in {folder} {_TRIES} times; start again.")


def _remove_leftovers(folder: Path, tag: str) -> None:
    """Remove files of dead makers; those of this user's other runs too."""
    prefix = tag.rpartition("-")[0]
    for path in folder.glob(f"{prefix}-*"):
        with contextlib.suppress(FileNotFoundError):  # its maker has just removed it
            info = path.lstat()
            is_ours = stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid()
            if is_ours and not is_held(path):
                path.unlink()


def _too_little(folder: Path, size_bytes: int, error: OSError) -> TransferError:
    if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.ENOMEM):
        return TransferError(f"shared memory can't be reserved in {folder} ({error.strerror}).")
    info = os.statvfs(folder)
    free, total = info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize
    return TransferError(
        f"two buckets need {size_bytes / _MIB:.2f} MiB in {folder}, which has {free / _MIB:.2f} "
        f"MiB free of {total / _MIB:.2f}; lower weights.bucket_mib, set weights.shared_memory_dir, "
        "or give the container more shared memory."
    )
