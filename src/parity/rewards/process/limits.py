"""What a grader process does to itself so that it can't harm the machine or outlive the run."""

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress

from parity.errors import ConfigError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def lead_group() -> None:
    """Make sure that this process leads a process group of its own."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def die_with(parent_pid: int, number: signal.Signals) -> None:
    """Ask the kernel for a signal when the parent dies; ends this process if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def end_first_without_memory() -> None:
    """Let the kernel, where memory runs out, end this process before any process of the run."""
    with suppress(OSError):  # another kernel, or one that allows nothing here
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, b"1000")
        finally:
            os.close(fd)


def limit_memory(memory_mib: int | None) -> None:
    """Bound the address space of this process; what it starts inherits the bound, each its own."""
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
