"""The driver's end of one grader process: starts it, gives it answers, ends it.

A child belongs to one thread of `grader.py`; `kill` alone may be called from any thread.
Every wait has a deadline, which is measured in that thread, so that a busy event loop can't
make an answer late. A child that has failed once is dead: make another.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from parity.errors import RewardError
from parity.rewards.process import wire
from parity.rewards.process.channel import Channel, ClosedError, LateError
from parity.types import GraderFailure, RewardResult

START_TIMEOUT_S = 120.0  # to import what the reward needs, on a busy machine
_WARDEN_TIMEOUT_S = 8.0  # for the warden to kill all that the process started
_REAP_TIMEOUT_S = 2.0
_SHOWN_STDERR_CHARACTERS = 500

log = logging.getLogger(__name__)


class Child:
    """One grader process."""

    def __init__(self, environment: Mapping[str, str], working_dir: Path) -> None:
        """Start the process; `environment` is set on top of what it inherits."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        worker = [sys.executable, "-P", "-u", "-m", "parity.rewards.worker"]
        self._process = subprocess.Popen(
            ["/usr/bin/env", *variables, *worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=working_dir,
            start_new_session=True,
        )
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin and stdout and stderr, "all three are pipes"
        self._channel = Channel(stdin, stdout, stderr)
        self.is_alive = True
        self.has_graded = False  # an answer, so that the process may not be as it began

    @property
    def pid(self) -> int:
        """The warden of the process, which leads a session of the same number."""
        return self._process.pid

    def begin(self, setup: wire.Setup) -> None:
        """Let it build the reward; waits until it has.

        Raises ConfigError, UnsupportedError or RewardError where it can't.
        """
        self._channel.send(wire.encode_setup(setup))
        try:
            refused = wire.decode_ready(self._channel.line(time.monotonic() + START_TIMEOUT_S))
        except LateError:
            self.end()
            raise RewardError(
                f"a grader process didn't build the reward within {START_TIMEOUT_S:.0f} s;"
                f" look for a slow import in its module.{self._stderr()}"
            ) from None
        except (ClosedError, ValueError, LookupError, AttributeError) as error:
            raise RewardError(
                f"a grader process failed before it was ready: it {self._ending(error)}"
            ) from error
        if refused is not None:
            self.end()
            raise refused.as_error()

    def grade(self, lines: Sequence[bytes], timeout_s: float) -> list[RewardResult]:
        """The results of the first answers, at least one; each answer has `timeout_s`.

        Fewer than given: the last result is the failure of the answer at which the process was
        lost, and the answers after it weren't graded.
        """
        self.has_graded = True
        self._channel.send(b"".join(lines))
        results: list[RewardResult] = []
        for _ in lines:
            try:
                line = self._channel.line(time.monotonic() + timeout_s)
                results.append(wire.decode_result(line))
            except LateError:
                self.end()
                reason = f"timed out after {timeout_s:g} s (grader.timeout_s){self._stderr()}"
                results.append(GraderFailure(reason, lost_process=True))
                break
            except (ClosedError, ValueError, LookupError, TypeError) as error:
                reason = f"the grader process {self._ending(error)}"
                results.append(GraderFailure(reason, lost_process=True))
                break
        return results

    def has_ended(self) -> bool:
        """Whether the process is dead, by itself or by us."""
        has_exited = self._process.poll() is not None  # before the pipe of what it started closes
        return not self.is_alive or has_exited or self._channel.is_closed()

    def kill(self) -> None:
        """Let the warden kill the process and all that it started; returns at once."""
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # where somebody stopped it

    def end(self) -> None:
        """Kill it, collect its exit status and close the pipes."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.kill()
        self._channel.close()
        if not self._reaped(_WARDEN_TIMEOUT_S):
            self._process.kill()
            if not self._reaped(_REAP_TIMEOUT_S):  # stuck in the kernel; it is killed later
                log.warning("grader.unreaped pid=%d after_s=%.0f", self.pid, _REAP_TIMEOUT_S)
        if self._process.returncode == -signal.SIGKILL:
            _kill_session(self.pid)  # in case it was the warden that was killed

    def _reaped(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _ending(self, error: Exception) -> str:
        """What went wrong with the process, in words; ends it where it hasn't ended."""
        self.end()
        code = self._process.returncode
        if not isinstance(error, ClosedError):
            happened = f"wrote something that is no reply ({type(error).__name__}: {error})"
        elif code is None:
            happened = "closed its pipe"
        elif code < 0:
            happened = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        else:
            happened = f"exited with code {code}"
        return f"{happened}{self._stderr()}"

    def _stderr(self) -> str:
        tail = self._channel.stderr[-_SHOWN_STDERR_CHARACTERS:]
        return f"; its stderr ended with: {tail}" if tail else ""


def _kill_session(leader_pid: int) -> None:
    """Kill what is left of the session that a process led; does nothing without /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # After the name, which may hold anything: state, parent, group, session.
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == leader_pid:
                os.kill(int(folder.name), signal.SIGKILL)
