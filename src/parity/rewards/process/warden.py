"""The parent of one grader process: it grades nothing, and ends all that the grader started.

`worker.py` forks the grader and becomes its warden before it imports a reward. Invariants, on
Linux: whatever a reward starts, in whatever session, is below the warden in the tree of
processes, because orphans fall to it and not to init; when the driver, the grader or
the warden itself is to end, the warden kills until it has no child, and only then ends, as the
grader ended. So nothing that a reward started outlives its grader, and a reward that kills its
parent kills the warden and not the run. Where the warden is killed, the kernel kills the
grader, and the driver (`child.py`) what is left of the session; only processes with a session
of their own escape that, and, on other kernels than Linux, any end.

The driver asks for the end with SIGTERM, by closing its pipe, or by dying.
"""

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from parity.rewards.process.limits import die_with

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_AWAITED = {signal.SIGTERM, signal.SIGCHLD}
_INTERVAL_S = 0.25
_KILL_S = 5.0  # for what is stuck in the kernel
_KILL_PAUSE_S = 0.002


def fork_under_warden(driver_fd: int, own_fds: tuple[int, ...], max_children: int | None) -> None:
    """Return in a forked grader process; the calling process becomes its warden and never returns.

    `driver_fd` is the read end of a pipe that only the driver writes to; `own_fds` are the
    grader's alone. Must run before this process starts a thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    warden_pid = os.getpid()
    grader_pid = os.fork()
    if grader_pid == 0:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        die_with(warden_pid, signal.SIGKILL)
        return
    with suppress(OSError):  # the grader has done it, or has ended
        os.setpgid(grader_pid, grader_pid)
    for fd in own_fds:
        os.close(fd)
    _watch(driver_fd, grader_pid, max_children)
    _end_as(_end_all(grader_pid))


def _watch(driver_fd: int, grader_pid: int, max_children: int | None) -> None:
    """Wait until the grader has ended or has to."""
    poll = select.poll()
    poll.register(driver_fd, 0)  # hang-ups are always reported; data isn't wanted
    while not _has_ended(grader_pid) and not poll.poll(0):
        if max_children is not None:
            number = sum(1 for _ in _descendants(os.getpid())) - 1
            if number > max_children:
                _tell(
                    f"the reward had {number} processes running at once, and grader.max_children"
                    f" is {max_children}; all were killed.\n"
                )
                return
        told = signal.sigtimedwait(_AWAITED, _INTERVAL_S)
        if told is not None and told.si_signo == signal.SIGTERM:
            return


def _has_ended(grader_pid: int) -> bool:
    """Whether the grader is dead, though not reaped: its number is still its own. Reaps orphans."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        if ended.si_pid == grader_pid:
            return True
        os.waitpid(ended.si_pid, 0)


def _end_all(grader_pid: int) -> int:
    """Kill until no child is left, as orphans come here; the wait status of the grader."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(grader_pid, signal.SIGKILL)  # at one blow, which no fork can outrun
    status = signal.SIGKILL.value
    until_s = time.monotonic() + _KILL_S
    while time.monotonic() < until_s:
        for pid in list(_descendants(os.getpid())):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                status = ended[1] if ended[0] == grader_pid else status
        except ChildProcessError:
            break
        time.sleep(_KILL_PAUSE_S)
    return status


def _end_as(status: int) -> NoReturn:
    """End as the grader did, so that the driver sees its exit code or its signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = -code
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(code if code >= 0 else 128 - code)


def _descendants(pid: int) -> Iterator[int]:
    """All processes below one, as the kernel lists them; none where it doesn't."""
    with suppress(OSError):  # it has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def _tell(sentence: str) -> None:
    """Write to stderr if that needs no waiting; the driver quotes its end."""
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if poll.poll(0):
        with suppress(OSError):
            os.write(2, sentence.encode())
