"""Answers for the tests of rewards, and functions that `reward.name=python` calls in them."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from parity.types import Answer, GraderFailure, Scored, Split, Unscored


def answer(
    response: str,
    expected: str | None = "42",
    *,
    columns: dict | None = None,
    is_truncated: bool = False,
    split: Split = "train",
    task_id: str = "t0",
) -> Answer:
    return Answer(
        task_id=task_id,
        question="what?",
        response=response,
        expected=expected,
        columns=columns or {},
        is_truncated=is_truncated,
        split=split,
    )


def echo(given: Answer) -> object:
    """The response as a number; the simplest function that depends on the answer."""
    return float(given.response)


def length(given: Answer, *, scale: float = 1.0) -> float:
    return scale * len(given.response)


def seen(given: Answer) -> object:
    """What the process sees, by the name in the response, as the reason of an Unscored."""
    sights: dict[str, Callable[[], object]] = {
        "split": lambda: given.split,
        "is_truncated": lambda: given.is_truncated,
        "working directory": Path.cwd,
        "first path": lambda: sys.path[0],
        "is main thread": lambda: threading.current_thread() is threading.main_thread(),
        "modules": lambda: " ".join(sorted(name for name in sys.modules if "." not in name)),
        "stdin": lambda: repr(sys.stdin.read()),
        "pid": os.getpid,
    }
    sight = sights.get(given.response, lambda: os.environ.get(given.response))
    return Unscored(str(sight()))


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


def typed(given: Answer) -> object:
    """A value of the kind that the response names."""
    import fractions

    import numpy

    values: dict[str, object] = {
        "int": 2,
        "bool": True,
        "float": 0.5,
        "none": None,
        "float32": numpy.float32(0.5),
        "int64": numpy.int64(3),
        "bool_": numpy.bool_(True),
        "fraction": fractions.Fraction(1, 4),
        "scored": Scored(numpy.float64(1.5), {"a": numpy.float32(0.25)}),
        "unscored": Unscored("no"),
        "failure": GraderFailure("later"),
        "dict": {"value": 1, "parts": {"a": 0.5, "absent": None}},
        "dict none": {"value": None},
        "text": "1.0",
        "bytes": b"1",
        "nan": float("nan"),
        "inf": float("-inf"),
        "numpy nan": numpy.float32("nan"),
        "numpy text": numpy.str_("1"),
        "array": numpy.zeros(1),
        "complex": 1j,
        "huge": 10**400,
        "list": [1.0],
        "odd": Odd(),
        "scored text": Scored("1"),  # pyright: ignore
        "scored nan": Scored(float("nan")),
        "part nan": Scored(1.0, {"a": float("nan")}),
        "part name": Scored(1.0, {1: 1.0}),  # pyright: ignore
        "parts list": {"value": 1.0, "parts": [1.0]},
        "no value": {"score": 1.0, "acc": 1},
        "more keys": {"value": 1.0, "acc": 1},
        "empty dict": {},
    }
    return values[given.response]


class StubbornError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


def _hang(_: str) -> None:
    while True:
        time.sleep(60)


def _spin(_: str) -> None:
    while True:
        pass


def _raise(error: BaseException) -> None:
    raise error


def _recurse(text: str) -> None:
    _recurse(text)


def _print(_: str) -> float:
    sys.stdout.write('{"value": 9.0, "parts": {}}\n' * 5000)
    os.write(1, b'{"value": 9.0, "parts": {}}\n')
    sys.stderr.write("to stderr\n")
    return 1.0


def _last_words(_: str) -> None:
    sys.stderr.write("noise\n" * 10_000 + "something is wrong\n")
    os._exit(3)


def _start_child(mark: str) -> float:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", mark])
    return 1.0


_LEFT_BEHIND: list[str] = []


def _leave(_: str) -> None:
    """Fails by itself in a way that may pass, and spoils the process for whatever comes next."""
    _LEFT_BEHIND.append("a lock that is never given back")
    raise ConnectionResetError("peer went away")


def _freeze_once(flag: str) -> float:
    """Stops the process that comes first; `flag` is a path that nothing else uses."""
    try:
        Path(flag).touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGSTOP)
    except FileExistsError:
        pass
    return 1.0


def _sleep(seconds: str) -> float:
    time.sleep(float(seconds))
    return 1.0


DEEDS: dict[str, Callable[[str], object]] = {
    "hang": _hang,
    "spin": _spin,
    "regex": lambda _: re.match(r"(a+)+$", "a" * 64 + "b"),  # holds the interpreter
    "exit": lambda _: os._exit(7),
    "sys.exit": lambda _: sys.exit("enough"),
    "segfault": lambda _: ctypes.string_at(0),
    "kill": lambda number: os.kill(os.getpid(), int(number)),
    "raise": lambda _: _raise(KeyError("no such thing")),
    "network": lambda _: _raise(ConnectionResetError("peer went away")),
    "stubborn": lambda _: _raise(StubbornError()),
    "recursion": _recurse,
    "memory": lambda _: len(bytearray(8 * 1024**3)),
    "print": _print,
    "last-words": _last_words,
    "stdin": lambda _: float(len(sys.stdin.read())),
    "child": _start_child,
    "child-hang": lambda mark: (_start_child(mark), time.sleep(600)),
    "slow": _sleep,
    "leave": _leave,
    "freeze-once": _freeze_once,
}


def misbehave(given: Answer) -> object:
    """Does what the response says; a number is its own score."""
    if _LEFT_BEHIND:
        _hang("")
    word, _, rest = given.response.partition(" ")
    return DEEDS[word](rest) if word in DEEDS else float(given.response)


async def asynchronous(given: Answer) -> float:
    return 1.0


not_callable = 3
