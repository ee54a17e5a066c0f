"""Who may use which device of this host, and which jobs it runs: lock files, held with flock.

Every job of a host, in whatever container, must see the same lease folder. The kernel frees a
lock with its holder's death, so none is ever stale; the file's text names the holder, for
messages and so that the next holder can end what a killed job has left running. Invariant: a
job takes all its devices or none, so two jobs can't wait for each other.

A job that is killed outright (SIGKILL, out of memory) can't end its tests. Its own lock file stays,
unlocked, and names its marker; the next job of the host, whatever its suite, ends the processes
that carry it.
"""

import fcntl
import json
import os
import platform as host
import re
import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from parity.ci.run.processes import kill_marked
from parity.ci.text import harmless
from parity.errors import ParityError

MARK = re.compile(r"[A-Za-z0-9._-]{1,255}-[0-9]{1,10}-[0-9a-f]{16}")  # of one run of one job
_POLL_S = 0.2
_KEPT_S = 7 * 24 * 3600.0  # for a job of another container of this host, which we can't see
_SHARED = 0o777  # the jobs of a host may run as different users


class LeaseError(ParityError):
    """The devices that a shard needs are held by others."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a device, as its lock file says."""

    job: str  # what runs: suite and shard
    pid: int
    host: str  # name of the machine or container
    marker: str  # beginning of the marker of all its processes
    since: str  # UTC


@dataclass(frozen=True, slots=True)
class Lease:
    """The devices of a shard, by key, and what was ended to get them."""

    keys: tuple[str, ...]
    ended: tuple[str, ...]  # processes that a dead job had left


@contextmanager
def lease(
    keys: Sequence[str], count: int, owner: Owner, *, folder: Path, timeout_s: float
) -> Generator[Lease]:
    """Hold `count` of the devices `keys` (best first); waits for other jobs until the timeout.

    Raises LeaseError, which names the holders.
    """
    make_shared(folder)
    deadline = time.monotonic() + timeout_s
    while not (held := _try(keys, count, folder)):
        if time.monotonic() >= deadline:
            raise LeaseError(_busy(keys, count, folder, timeout_s))
        time.sleep(_POLL_S)
    try:
        ended = [text for key, file in held.items() for text in _end_last_owner(key, file, owner)]
        yield Lease(tuple(held), tuple(ended))
    finally:
        for file in held.values():
            os.ftruncate(file, 0)  # in good order: nothing is left to be ended
            os.close(file)


def holder(key: str, folder: Path) -> Owner | None:
    """Who the lock file of a device names; None for a device that was given back."""
    try:
        return _parse(_path(folder, key).read_text(encoding="utf-8"))
    except OSError:
        return None


def _try(keys: Sequence[str], count: int, folder: Path) -> dict[str, int]:
    """The first `count` devices that are free, locked; empty where there are fewer."""
    held: dict[str, int] = {}
    for key in keys:
        if len(held) == count:
            break
        if (file := locked(_path(folder, key))) is not None:
            held[key] = file
    if len(held) == count:
        return held
    for file in held.values():
        os.close(file)
    return {}


def locked(path: Path) -> int | None:
    """The open file, locked until it is closed or we die; None where somebody else has it.

    Raises LeaseError where it can't be opened: a link, a folder, another user's.
    """
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise LeaseError(
                f"the lock file {path} can't be opened ({error.strerror}); remove it, or set"
                " lease_dir in [run] to a folder that every job of this host can write."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        if os.fstat(file).st_uid == os.getuid():
            os.fchmod(file, 0o666)  # whatever our umask is
        if _is_at(file, path):
            return file
        os.close(file)  # it was removed before we had it: a lock on it keeps nobody out


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat(follow_symlinks=False))
    except OSError:
        return False


def _end_last_owner(key: str, file: int, owner: Owner) -> list[str]:
    """Kill what carries the marker of a job that died while it held the device; sign the file."""
    last = _parse(os.pread(file, 4096, 0).decode("utf-8", errors="replace"))
    ended = [] if last is None else kill_marked(last.marker)
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(asdict(owner)).encode(), 0)
    return [f"{text}, left on device {key} by {last.job}" for text in ended] if last else []


def _busy(keys: Sequence[str], count: int, folder: Path, timeout_s: float) -> str:
    holders = [f"{key}: {_told(holder(key, folder))}" for key in keys]
    return (
        f"{count} devices are needed, and fewer of {len(keys)} were free within {timeout_s:.4g} s"
        f" ({'; '.join(holders)}); wait for those jobs, or raise lease_timeout_s in [run]."
    )


def _told(owner: Owner | None) -> str:
    if owner is None:
        return "free"
    return f"held by {owner.job}, pid {owner.pid} on {owner.host}, since {owner.since}"


def _parse(text: str) -> Owner | None:
    try:
        row: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    fields = cast("dict[str, object]", row)
    job, pid, marker = fields.get("job"), fields.get("pid"), fields.get("marker")
    # Anybody may write here, and an empty marker would be the beginning of everybody's.
    if not isinstance(pid, int) or not isinstance(marker, str) or not MARK.fullmatch(marker):
        return None
    words = [harmless(str(each))[:80] for each in (job, fields.get("host"), fields.get("since"))]
    return Owner(job=words[0], pid=pid, host=words[1], marker=marker, since=words[2])


def _path(folder: Path, key: str) -> Path:
    return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', key)}.lock"


def make_shared(folder: Path) -> None:
    """Make a folder that the jobs of all users of this host can write. Raises LeaseError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LeaseError(
            f"the lease folder {folder} can't be made ({error}); set lease_dir in [run] to a"
            " folder that every job of this host can write."
        ) from error
    if folder.is_dir() and folder.stat().st_uid == os.getuid():
        folder.chmod(_SHARED)


def new_marker() -> str:
    """The beginning of the marker of every process of this job."""
    return f"{_host()}-{os.getpid()}-{secrets.token_hex(8)}"


def _host() -> str:
    """The name of this machine or container, as far as a file name can hold it."""
    kept = (each if each.isascii() and each.isalnum() else "_" for each in host.node())
    return "".join(kept)[:200] or "host"


@contextmanager
def registered(marker: str, lease_dir: Path) -> Generator[list[str]]:
    """Keep this job's lock file; yields what dead jobs had left and was ended."""
    folder = lease_dir / "jobs"
    make_shared(lease_dir)
    make_shared(folder)
    ended = _sweep(folder)
    path = folder / marker
    file = locked(path)
    try:
        yield ended
    finally:
        path.unlink(missing_ok=True)
        if file is not None:
            os.close(file)


def _sweep(folder: Path) -> list[str]:
    ended: list[str] = []
    for path in sorted(folder.iterdir()):
        if not MARK.fullmatch(path.name) or path.is_symlink():
            continue  # not ours
        file = locked(path)
        if file is None:
            continue  # it lives
        try:
            is_here = path.name.startswith(f"{_host()}-")
            is_old = time.time() - os.fstat(file).st_mtime > _KEPT_S
            killed = kill_marked(path.name)
            ended += [f"{text}, left by a job that was killed" for text in killed]
            if is_here or is_old:
                path.unlink(missing_ok=True)
        finally:
            os.close(file)
    return ended
