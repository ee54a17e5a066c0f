"""What a grader process does to itself so that it can't harm the machine or outlive the run.

The process leads a process group, which the driver kills as a whole. Two things end it where
the driver can't: on Linux the kernel kills it when the driver dies, even in the middle of a
loop that holds the interpreter; and a guard, a forked child that only watches, kills the whole
group as soon as the driver or the grader is gone, so that what a reward started goes too,
unless it moved into a session of its own (setsid): such a child can outlive the run.
"""

import ctypes
import os
import resource
import select
import signal
import sys

from parity.errors import ConfigError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GUARD_INTERVAL_MS = 500


def lead_group() -> None:
    """Make sure that this process leads a process group of its own."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def start_guard(driver_fd: int) -> None:
    """Fork the guard; `driver_fd` is the read end of a pipe that only the driver writes to.

    Must run before this process starts a thread.
    """
    grader_pid = os.getpid()
    if os.fork() == 0:
        _guard(driver_fd, grader_pid)


def die_with(driver_pid: int) -> None:
    """Ask the kernel to end this process when the driver dies; ends it if that has happened."""
    if sys.platform != "linux":
        return  # there the guard does it alone, within half a second
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != driver_pid:
        os._exit(1)


def limit_memory(memory_mib: int | None) -> None:
    """Bound the address space of this process; what it starts inherits the bound."""
    if memory_mib is None:
        return
    size_bytes = memory_mib * 1024**2
    try:
        resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"grader.memory_mib is {memory_mib}, which this system refuses ({error});"
            " set grader.memory_mib=null or a smaller number."
        ) from error


def _guard(driver_fd: int, grader_pid: int) -> None:
    """Never returns: wait for the end of either process, then kill the group, this one included."""
    os.closerange(0, driver_fd)
    os.closerange(driver_fd + 1, driver_fd + 64)
    poll = select.poll()
    poll.register(driver_fd, 0)  # hang-ups are always reported; data isn't wanted
    while os.getppid() == grader_pid and not poll.poll(_GUARD_INTERVAL_MS):
        pass
    os.kill(0, signal.SIGKILL)
