"""Reward functions that do what must harm neither the run nor the machine, one per first word."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from parity.types import Answer, GraderFailure, Scored, Unscored

MIB = 1024**2


class Lie(float):
    """Says that it is 1 and counts as NaN."""

    def __float__(self) -> float:
        return float("nan")


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class SlowError(Exception):
    def __str__(self) -> str:
        while True:
            time.sleep(60)


class Away(BaseException):
    """As pytest's own outcomes and asyncio's cancellation: no Exception."""


def _raise(error: BaseException) -> None:
    raise error


def _close(first: int, last: int) -> float:
    os.closerange(first, last)
    return 1.0


def _flood(mebibytes: str) -> float:
    for _ in range(int(mebibytes) // 2):
        for fd in (1, 2):
            left = memoryview(b"x" * MIB)
            while left:
                left = left[os.write(fd, left) :]
    return 1.0


def _daemons(rest: str) -> float:
    """`NUMBER MARK`: so many processes in sessions of their own, of init, deaf to SIGTERM."""
    number, mark = rest.split()
    command = ["setsid", "--fork", "sh", "-c", "trap '' TERM HUP; sleep 600; :", mark]
    started = [subprocess.Popen(command, env={}) for _ in range(int(number))]
    for one in started:
        one.wait()
    return 1.0


def _daemons_then(end: Callable[[], object]) -> Callable[[str], None]:
    def deed(rest: str) -> None:
        _daemons(rest)
        time.sleep(0.2)  # until each has set its trap
        end()

    return deed


def _bomb(depth: str) -> float:
    """Doubles itself so many times, each copy in a session of its own, and waits."""
    for _ in range(int(depth)):
        if os.fork() == 0:
            os.setsid()
    while True:
        time.sleep(60)


def _fork(_: str) -> float:
    """Comes back twice: the child says 666."""
    return 666.0 if os.fork() == 0 else 1.0


def _fork_raises(_: str) -> float:
    if os.fork() == 0:
        raise ValueError("in the child")
    time.sleep(0.5)
    return 1.0


def _moves(_: str) -> float:
    os.chdir("/")
    return 1.0


def _removes_folder(_: str) -> float:
    Path.cwd().rmdir()
    return 1.0


def _deaf(_: str) -> None:
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        if number < 32:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(60)


def _alarm(_: str) -> float:
    """Leaves behind a signal that breaks whatever the process does next."""
    signal.signal(signal.SIGALRM, lambda *_: _raise(Away("late")))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return 1.0


def _thread(_: str) -> float:
    def write() -> None:
        while True:
            os.write(2, b"noise\n" * 1000)

    threading.Thread(target=write, daemon=True).start()
    return 1.0


DEEDS: dict[str, Callable[[str], object]] = {
    "close-std": lambda _: _close(0, 3),
    "close-all": lambda _: _close(0, 1024),
    "flood": _flood,
    "daemons": _daemons,
    "daemons-exit": _daemons_then(lambda: os._exit(0)),
    "daemons-abort": _daemons_then(os.abort),
    "daemons-hang": _daemons_then(lambda: time.sleep(600)),
    "daemons-group": _daemons_then(lambda: os.killpg(0, signal.SIGKILL)),
    "bomb": _bomb,
    "fork": _fork,
    "fork-raises": _fork_raises,
    "moves": _moves,
    "where": lambda _: Unscored(str(Path.cwd())),
    "removes-folder": _removes_folder,
    "deaf": _deaf,
    "alarm": _alarm,
    "thread": _thread,
    "kill-parent": lambda _: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(600)),
    "stop-parent": lambda _: (os.kill(os.getppid(), signal.SIGSTOP), time.sleep(600)),
    "away": lambda _: _raise(Away("from keyboard or test")),
    "interrupt": lambda _: _raise(KeyboardInterrupt()),
    "cancelled": lambda _: _raise(asyncio.CancelledError()),
    "unprintable": lambda _: _raise(UnprintableError()),
    "slow-message": lambda _: _raise(SlowError()),
    "long-message": lambda _: _raise(ValueError("x" * 64 * MIB)),
    "big": lambda mebibytes: "1" * (int(mebibytes) * MIB),
    "big-number": lambda _: 10**100_000,
    "big-reason": lambda _: Unscored("x" * 64 * MIB),
    "many-parts": lambda _: Scored(1.0, {f"part {n}": 1.0 for n in range(200_000)}),
    "lie": lambda _: Lie(1.0),
    "lying-part": lambda _: Scored(1.0, {"part": Lie(1.0)}),
    "reason-number": lambda _: Unscored(5),  # pyright: ignore
    "reason-bytes": lambda _: GraderFailure(b"no", retryable="perhaps"),  # pyright: ignore
    "memory": lambda mebibytes: float(len(bytearray(int(mebibytes) * MIB)) > 0),
    "first-to-go": lambda _: float(Path("/proc/self/oom_score_adj").read_text()),
}


def score(given: Answer) -> object:
    """Does what the response says; a number is its own score."""
    word, _, rest = given.response.partition(" ")
    return DEEDS[word](rest) if word in DEEDS else float(given.response)
