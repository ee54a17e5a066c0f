"""The jobs of this host by their markers, so that a killed one leaves nothing behind for long.

A job that is killed outright (SIGKILL, out of memory) can't end its tests. Its lock file stays,
unlocked, and names its marker; the next job of the host, whatever its suite, ends the processes
that carry it. Used by `job.py`.
"""

import os
import platform as host
import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from parity.ci.run.leases import MARK, locked, make_shared
from parity.ci.run.processes import kill_marked

_KEPT_S = 7 * 24 * 3600.0  # for a job of another container of this host, which we can't see


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
