"""Answers for the tests of rewards, and functions that `reward.name=python` calls in them."""

import ctypes
import os
import re
import subprocess
import sys
import threading
import time

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
    """What the process sees, by the name in the response."""
    match given.response:
        case "split":
            return float(given.split == "eval")
        case "is_truncated":
            return given.is_truncated
        case "working directory":
            return Unscored(os.getcwd())
        case "first path":
            return Unscored(sys.path[0])
        case "thread":
            return threading.current_thread() is threading.main_thread()
        case "modules":
            return Unscored(" ".join(sorted(name for name in sys.modules if "." not in name)))
        case "stdin":
            return Unscored(repr(sys.stdin.read()))
        case variable:
            return Unscored(repr(os.environ.get(variable)))


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


class Stubborn(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


def misbehave(given: Answer) -> object:
    """Does what the response says; a number is its own score."""
    word, _, rest = given.response.partition(" ")
    match word:
        case "hang":
            while True:
                time.sleep(60)
        case "spin":
            while True:
                pass
        case "regex":
            return re.match(r"(a+)+$", "a" * 64 + "b") is not None
        case "exit":
            os._exit(7)
        case "sys.exit":
            sys.exit("enough")
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), int(rest))
        case "raise":
            raise KeyError("no such thing")
        case "network":
            raise ConnectionResetError("peer went away")
        case "stubborn":
            raise Stubborn
        case "recursion":
            return misbehave(given)
        case "memory":
            return len(bytearray(8 * 1024**3))
        case "print":
            print('{"value": 9.0, "parts": {}}\n' * 5000)
            os.write(1, b'{"value": 9.0, "parts": {}}\n')
            print("to stderr", file=sys.stderr)
            return 1.0
        case "last words":
            print("something is wrong", file=sys.stderr)
            os._exit(3)
        case "stdin":
            return float(len(sys.stdin.read()))
        case "child":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", rest])
            return 1.0
        case "child-hang":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", rest])
            time.sleep(600)
        case "slow":
            time.sleep(float(rest))
            return 1.0
    return float(given.response)


async def asynchronous(given: Answer) -> float:
    return 1.0


not_callable = 3
