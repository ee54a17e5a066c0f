"""Everything that one test file has started: found, killed and reaped, and nothing else.

Used by `execute.py`. A test may leave its process group (setsid), lose its parent (double
fork) or clear its environment, but not all of our marks: this process adopts orphans
(PR_SET_CHILD_SUBREAPER, Linux), and every descendant inherits a marker variable. A process is
known by its id and start time together (in ticks since the machine's own start, for the wall
clock may jump), so that an id which was used again is never killed.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from parity.ci.text import harmless

MARKER = "PARITY_CI_OWNER"
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # prctl(2)
_POLL_S = 0.02
_CHASE_S = 1.0
_SHOWN_CHARACTERS = 120


@contextmanager
def adopting_orphans() -> Generator[bool]:
    """This process is the parent of its descendants' orphans; False where the system can't.

    What it was before is restored at the end.
    """
    if not sys.platform.startswith("linux"):
        yield False
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    known = libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) == 0
    try:
        yield known and libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


class Tree:
    """The processes of one attempt: descendants that weren't there before, and marked ones."""

    def __init__(self, marker: str) -> None:
        """`marker` is the attempt's value of MARKER; the tree is made before its first process."""
        self._marker = marker
        self._own: set[int] = set()
        self._before = {_identity(process) for process in _descendants()}

    def leave_to_starter(self, pid: int) -> None:
        """Don't collect the end of this process; who started it will."""
        self._own.add(pid)

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
            _kill_groups(members)
            for process in members:
                _kill(process)
            children = self._chase(until=min(deadline, time.monotonic() + _CHASE_S))
            if not members and not children:
                return []
            if time.monotonic() > deadline:
                left = members or [
                    psutil.Process(pid) for pid in children if psutil.pid_exists(pid)
                ]
                return [describe(process) for process in left]
            time.sleep(_POLL_S)

    def _chase(self, *, until: float) -> list[int]:
        """Kill and collect our new children as fast as they come; those that remain.

        A process that starts its successor and ends is gone before a list of all processes is
        made. But the first of such a line is always our child, and its orphan is ours at once.
        """
        while children := self._new_children():
            for pid in children:
                _kill_id(pid)
            for pid in children:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue  # its starter has collected it
            if time.monotonic() > until:
                break
        return children

    def _new_children(self) -> list[int]:
        """Our children, the dead included, but those that belong to somebody else.

        The kernel's quick list may miss some while others end; where it is empty, all are asked.
        """
        known = {pid for pid, _ in self._before} | self._own
        quick = [pid for pid in _child_ids() if pid not in known]
        return quick or [p.pid for p in psutil.Process().children() if p.pid not in known]


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
    """`pid 12 (python train.py)`, as reports name a process; its own text is made harmless."""
    try:
        command = " ".join(process.cmdline()) or process.name()
    except (psutil.Error, OSError):
        command = "ended"
    return f"pid {process.pid} ({harmless(command)[:_SHOWN_CHARACTERS]})"


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _identity(process: psutil.Process) -> tuple[int, str]:
    try:
        # Field 22 of proc(5): the start in ticks. The name before it may hold anything but ")".
        stat = Path(f"/proc/{process.pid}/stat").read_text(errors="replace")
        return process.pid, stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return process.pid, ""


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _child_ids() -> list[int]:
    """Our children, dead ones included."""
    try:
        found = [p.read_text() for p in Path("/proc/self/task").glob("*/children")]
    except OSError:
        found = []
    if not found:  # a kernel without that file
        return [process.pid for process in psutil.Process().children()]
    return [int(word) for text in found for word in text.split()]


def _kill_groups(members: Sequence[psutil.Process]) -> None:
    """Kill whole process groups at once: while a list of many is gone through, more are born."""
    groups: set[int] = set()
    for process in members:
        try:
            groups.add(os.getpgid(process.pid))
        except OSError:
            continue
    for group in groups - {os.getpgrp(), 0, 1}:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue


def _kill_id(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return  # it has ended, or isn't ours to kill: `members` tells
