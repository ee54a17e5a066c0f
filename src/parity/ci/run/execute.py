"""Runs one command as a process tree with a deadline; nothing of it lives on afterwards.

Used by `attempt.py`. The end is that of the first process: a grandchild that holds the pipe or
has left the process group delays nothing, and is killed and named.
"""

import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from parity.ci.run.output import Output
from parity.ci.run.processes import MARKER, Tree, describe
from parity.config import environment
from parity.errors import ParityError

DUMP_TIMEOUT_S = 3.0  # for a hung test to say where it hangs, once told to abort
KILL_TIMEOUT_S = 15.0
_POLL_S = 0.05
_CHUNK_BYTES = 65536
_LAST_CHUNKS = 256  # what is left in the pipe after the end


@dataclass(frozen=True, slots=True)
class Command:
    """What to run and for how long."""

    argv: Sequence[str]
    working_dir: Path
    variables: Mapping[str, str]  # on top of ours
    without: Sequence[str]  # variables of ours that it doesn't get
    marker: str  # unique to the attempt
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended; exactly one of the first three holds."""

    is_timeout: bool
    exit_code: int | None
    signal: int | None
    time_s: float
    leftovers: tuple[str, ...]  # processes that outlived the first one and were killed
    survivors: tuple[str, ...]  # processes that can't be killed


class StartError(ParityError):
    """The command of a test can't be started."""


def execute(command: Command, output: Output) -> Ending:
    """Run `command` to its end or its deadline, then kill and reap all that it started.

    Raises StartError where it can't be started. When interrupted, kills all the same.
    """
    tree = Tree(command.marker)
    survivors: list[str] = []
    leftovers: list[str] = []
    begun = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    try:  # from here on, an interruption finds all that was started
        process = _start(command)
        tree.leave_to_starter(process.pid)
        assert process.stdout is not None, "stdout is a pipe"
        with _Reader(process.stdout, output) as reader:
            is_timeout = not reader.until(process.poll, begun + command.timeout_s)
            time_s = time.monotonic() - begun
            if is_timeout:
                _ask_where_it_hangs(process, reader)
            else:
                leftovers = [describe(member) for member in tree.members()]
            survivors = tree.kill(timeout_s=KILL_TIMEOUT_S)
            reader.drain()
    finally:
        if not survivors:
            survivors = tree.kill(timeout_s=KILL_TIMEOUT_S)
        code = process.poll() if process is not None else None
    is_signal = not is_timeout and code is not None and code < 0
    return Ending(
        is_timeout=is_timeout,
        exit_code=None if is_timeout or is_signal else code,
        signal=-code if is_signal and code is not None else None,
        time_s=time_s,
        leftovers=tuple(leftovers),
        survivors=tuple(survivors),
    )


def _start(command: Command) -> subprocess.Popen[bytes]:
    variables = {**command.variables, MARKER: command.marker, "PYTHONFAULTHANDLER": "1"}
    try:
        return subprocess.Popen(
            list(command.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=command.working_dir,
            env=environment.inherited(variables, without=command.without),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StartError(f"{command.argv[0]} can't be started ({why}).") from error


def _ask_where_it_hangs(process: subprocess.Popen[bytes], reader: "_Reader") -> None:
    """SIGABRT makes Python's fault handler print every thread's stack; no core is dumped."""
    try:
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        process.send_signal(signal.SIGABRT)
    except OSError:
        return  # it ended just now
    reader.until(process.poll, time.monotonic() + DUMP_TIMEOUT_S)


class _Reader:
    """Moves a pipe to an Output without ever waiting for its end."""

    def __init__(self, pipe: IO[bytes], output: Output) -> None:
        self._pipe, self._output = pipe, output
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "_Reader":
        os.set_blocking(self._pipe.fileno(), False)
        self._selector.register(self._pipe, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._pipe.close()

    def until(self, ended: Callable[[], int | None], deadline: float) -> bool:
        """Read until the process has ended (True) or the deadline has passed (False)."""
        while ended() is None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            self._read(min(_POLL_S, remaining_s))
        self.drain()
        return True

    def drain(self) -> None:
        """Take what is in the pipe now, to a limit: somebody may still be writing."""
        for _ in range(_LAST_CHUNKS):
            if not self._read(0.0):
                return

    def _read(self, timeout_s: float) -> bool:
        """Take one chunk; False where there is none within the time."""
        if not self._selector.get_map():
            time.sleep(timeout_s)  # the pipe was closed, the process still runs
            return False
        if not self._selector.select(timeout_s):
            return False
        data = os.read(self._pipe.fileno(), _CHUNK_BYTES)
        if not data:
            self._selector.unregister(self._pipe)
            return False
        self._output.feed(data)
        return True
