"""Everything that one test file has started: found, killed and reaped, and nothing else.

Used by `execute.py`. A test may leave its process group (setsid), lose its parent (double
fork) or clear its environment, but not all of our marks: this process adopts orphans
(PR_SET_CHILD_SUBREAPER, Linux), and every descendant inherits a marker variable. A process is
known by its id and start time together, so that an id which was used again is never killed.
"""

import ctypes
import os
import sys
import time
from collections.abc import Iterator

import psutil

MARKER = "PARITY_CI_OWNER"
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_POLL_S = 0.02
_SHOWN_CHARACTERS = 120


def adopt_orphans() -> bool:
    """Make this process the parent of its descendants' orphans; False where the system can't."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


class Tree:
    """The processes of one attempt: descendants that weren't there before, and marked ones."""

    def __init__(self, marker: str) -> None:
        """`marker` is the attempt's value of MARKER; the tree is made before its first process."""
        self._marker = marker
        self._before = {_identity(process) for process in _descendants()}

    def members(self) -> list[psutil.Process]:
        """Those that live now; a dead one that only waits to be reaped isn't a member."""
        found = {_identity(p): p for p in (*_descendants(), *marked(self._marker))}
        return [p for key, p in found.items() if key not in self._before and _is_alive(p)]

    def kill(self, *, timeout_s: float) -> list[str]:
        """Kill every member and whatever they start meanwhile; those that can't be killed.

        A process in an uninterruptible call of a driver survives SIGKILL.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            members = self.members()
            for process in members:
                _kill(process)
            self._reap()
            if not members:
                return []
            if time.monotonic() > deadline:
                return [describe(process) for process in members]
            time.sleep(_POLL_S)

    def _reap(self) -> None:
        """Collect the adopted dead; those that were there before belong to somebody else."""
        for process in psutil.Process().children():
            if _identity(process) not in self._before and not _is_alive(process):
                try:
                    os.waitpid(process.pid, os.WNOHANG)
                except ChildProcessError:
                    continue  # its starter has collected it


def marked(prefix: str) -> Iterator[psutil.Process]:
    """The processes on this machine whose marker begins so, as far as we may look."""
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            value = process.environ().get(MARKER, "")
        except (psutil.Error, OSError):
            continue  # another user's, or it has ended
        if value.startswith(prefix):
            yield process


def kill_marked(prefix: str) -> list[str]:
    """Kill what an earlier run of ours has left, by its marker; what was killed."""
    killed: list[str] = []
    for process in marked(prefix):
        killed.append(describe(process))
        _kill(process)
    return killed


def describe(process: psutil.Process) -> str:
    """`pid 12 (python train.py)`, as reports name a process."""
    try:
        command = " ".join(process.cmdline()) or process.name()
    except (psutil.Error, OSError):
        command = "ended"
    return f"pid {process.pid} ({command[:_SHOWN_CHARACTERS]})"


def is_running(pid: int, started_at: float) -> bool:
    """Whether the process of that id and start time (seconds since the epoch) still runs."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_at) < 1.0 and _is_alive(process)
    except psutil.Error:
        return False


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _identity(process: psutil.Process) -> tuple[int, float]:
    try:
        return process.pid, process.create_time()
    except psutil.Error:
        return process.pid, 0.0


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return  # it has ended, or isn't ours to kill: `members` tells
