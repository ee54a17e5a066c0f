"""The private directory of a run on one host: endpoints by role, each with a living owner.

    <temporary folder>/parity-<uid>/<12 digits of the run id>/   mode 0700
        .run                  the run id, locked by the driver as long as it lives
        0-1.sock 0-1.lock     replica 0, node-local rank 1; the lock is its owner's

A lock is the kernel's (flock) and ends with its process, however that ends: so a leftover is
whatever has a lock file that nobody holds. Leftovers are removed; what is alive, or belongs to
another user, is never touched: the run refuses and names the path.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path

from parity.errors import TransferError

# sockaddr_un holds 108 bytes with the final zero; the longest name we make is "99999-99999.sock".
_LONGEST_DIR = 107 - len("/99999-99999.sock")
_CLAIM_S = 2.0
log = logging.getLogger(__name__)


class Lock:
    """A held lock file; the kernel drops it with the process."""

    def __init__(self, path: Path) -> None:
        """Take it; raises TransferError where a living process has it."""
        self.path = path
        end = time.monotonic() + _CLAIM_S
        while True:
            self._file = _open_private(path)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    os.close(self._file)
                    raise TransferError(
                        f"{path} can't be locked ({error.strerror}); put the folder on a file "
                        "system that has flock."
                    ) from error
                # A look at a lock holds it for an instant, so one refusal proves nothing.
                holder = os.pread(self._file, 64, 0).decode("ascii", "replace").strip()
                os.close(self._file)
                if time.monotonic() > end:
                    raise TransferError(
                        f"{path} belongs to a living process ({holder or 'unknown'}); stop that "
                        "run, or give this one another run id."
                    ) from None
                time.sleep(0.02)
                continue
            if _is_same_file(self._file, path):  # not removed by someone between open and lock
                break
            os.close(self._file)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"pid {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Remove the file and give the lock back; may be repeated."""
        if self._file >= 0:
            if _is_same_file(self._file, self.path):  # else it is somebody else's by now
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    @property
    def is_held(self) -> bool:
        """Whether it hasn't been given back."""
        return self._file >= 0


class Endpoint:
    """The socket path of one receiver, owned by this process."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.path = directory / f"{name}.sock"
        self._lock = Lock(directory / f"{name}.lock")
        try:
            _remove_dead_socket(self.path)
        except BaseException:
            self._lock.release()
            raise

    @property
    def address(self) -> str:
        """As ZeroMQ takes it."""
        return f"ipc://{self.path}"

    def release(self) -> None:
        """Remove socket and lock; may be repeated, also when another one has claimed them."""
        if self._lock.is_held:
            self.path.unlink(missing_ok=True)
            self._lock.release()


class RunDirectory:
    """The directory of one run; made by the driver, joined by its other processes."""

    def __init__(self, path: Path, lock: Lock | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls, run_id: str, *, parent: Path | None = None) -> "RunDirectory":
        """Make it, after removing what dead runs left.

        Args:
            run_id: unique among runs on this host.
            parent: where to put it; None: the temporary folder, or /tmp where that is too deep.

        Raises TransferError where a living process or another user has it.
        """
        top = _short_parent(parent) / f"parity-{os.getuid()}"
        path = top / hashlib.sha256(run_id.encode()).hexdigest()[:12]
        end = time.monotonic() + _CLAIM_S
        while True:
            try:
                _make_private(top)
                remove_leftovers(top)
                _make_private(path)
                return cls(path, Lock(path / ".run"))
            except (TransferError, FileNotFoundError) as error:
                # A run that ends takes its folder away, and the one above if that is empty.
                is_gone = isinstance(error.__cause__ or error, FileNotFoundError)
                if not is_gone or time.monotonic() > end:
                    raise

    @classmethod
    def join(cls, path: Path) -> "RunDirectory":
        """The directory that the driver made, for another process of the run."""
        _check_private(path)
        return cls(path, None)

    @property
    def tag(self) -> str:
        """What tells files of this run from those of others, outside the directory too."""
        return f"parity-{os.getuid()}-{self.path.name}"

    def claim(self, replica: int, local_rank: int) -> Endpoint:
        """Become the owner of an endpoint; raises TransferError where a living process is."""
        return Endpoint(self.path, endpoint_name(replica, local_rank))

    def member(self, name: str) -> Lock:
        """A lock that shows others that this process lives."""
        return Lock(self.path / f"{name}.lock")

    def address(self, name: str) -> str:
        """Where the owner of an endpoint listens, or will."""
        return f"ipc://{self.path / name}.sock"

    def is_alive(self, name: str) -> bool:
        """Whether a living process owns the endpoint or member."""
        return is_held(self.path / f"{name}.lock")

    def close(self) -> None:
        """Remove the directory, if this is the driver; may be repeated."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)  # before another run may claim it
            self._lock.release()
            self._lock = None
            with contextlib.suppress(OSError):  # other runs are in it
                self.path.parent.rmdir()


def endpoint_name(replica: int, local_rank: int) -> str:
    """The name of a receiver; never an identity of a device."""
    return f"{replica}-{local_rank}"


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock file; what can't be told is taken for alive.

    So a process that has no file descriptors left never removes what others use.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        return error.errno != errno.ELOOP  # a link isn't a lock of ours
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


def remove_leftovers(top: Path) -> list[Path]:
    """Remove the directories below `top` in which no lock is held; those that were removed."""
    removed: list[Path] = []
    for path in sorted(top.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # its run has just ended
            if _remove_dead_run(path):
                removed.append(path)
                log.info("event=leftover_removed path=%s", path)
    return removed


def _remove_dead_run(path: Path) -> bool:
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        return False
    if time.time() - info.st_mtime < _CLAIM_S:  # perhaps being made
        return False
    if any(is_held(lock) for lock in path.glob("*.lock")):
        return False
    file = _open_private(path / ".run")
    try:
        # Held while it is removed, so that a run of the same id doesn't begin in between.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _short_parent(parent: Path | None) -> Path:
    """The first folder that leaves room for a socket's name, the temporary one if it does."""
    wanted = Path(tempfile.gettempdir()) if parent is None else parent
    tail = f"/parity-{os.getuid()}/{'0' * 12}"
    for folder in (wanted, Path("/tmp"), Path("/dev/shm")):
        is_short = len(os.fsencode(folder)) + len(tail) <= _LONGEST_DIR
        if is_short and os.access(folder, os.W_OK | os.X_OK):
            if folder != wanted:
                log.info("event=socket_folder folder=%s reason=%s_is_too_long", folder, wanted)
            return folder
    raise TransferError(
        f"sockets need a path of at most 107 bytes and {wanted} is too long or can't be written; "
        "set TMPDIR to a short folder."
    )


def _make_private(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    _check_private(path)


def _check_private(path: Path) -> None:
    """Refuse a folder that others could have put there or could change."""
    try:
        info = path.lstat()
    except OSError as error:
        raise TransferError(
            f"the run's socket folder {path} can't be used ({error.strerror}); is the driver alive?"
        ) from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise TransferError(
            f"{path} belongs to user {info.st_uid} or isn't a folder; remove it or set TMPDIR."
        )
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise TransferError(
            f"{path} is open to other users (mode {stat.S_IMODE(info.st_mode):o}); "
            "make it 0700 or remove it."
        )


def _open_private(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise TransferError(f"{path} can't be opened ({error.strerror}).") from error


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _remove_dead_socket(path: Path) -> None:
    """Remove what a dead owner left at our path; refuse what is alive or isn't ours."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.getuid():
        raise TransferError(
            f"{path} isn't a socket of this user; it is left alone. Remove it, or give this run "
            "another run id."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise TransferError(f"{path} can't be tried ({error.strerror}).") from error
    raise TransferError(
        f"{path} is a living socket that another process listens on; it is left alone. Give this "
        "run another run id."
    )
