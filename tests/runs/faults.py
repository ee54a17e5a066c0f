"""`python faults.py FAULT WORDS...`: the command line with one part that gets stuck.

Run by `test_supervise.py` as a process of its own, because only there the watchdog can end it.
"""

import asyncio
import ctypes
import sys
import time

from parity import loop
from parity.cli.main import main
from parity.engines.embedded.scheduler import Scheduler
from parity.training.trainer import Trainer
from parity.weights.direct import DirectTransfer

FOR_EVER_S = 3600


def trainer(_: object, *args: object) -> None:
    """The trainer's thread waits inside C code, with the interpreter free for others."""
    sys.stdout.write("stuck\n")
    sys.stdout.flush()
    ctypes.CDLL(None).sleep(FOR_EVER_S)


def engine(_: object, *args: object, **options: object) -> None:
    """The engine's thread never comes back from a step."""
    time.sleep(FOR_EVER_S)


def event_loop(*_: object) -> None:
    """A plug-in blocks the event loop's thread in C code that no signal ends."""
    sys.stdout.write("stuck\n")
    sys.stdout.flush()
    until_s = time.monotonic() + FOR_EVER_S
    while time.monotonic() < until_s:
        ctypes.CDLL(None).usleep(900_000)


def interpreter(*_: object) -> None:
    """A thread holds the interpreter's lock for ever."""
    sys.stdout.write("stuck\n")
    sys.stdout.flush()
    ctypes.PyDLL(None).sleep(FOR_EVER_S)


async def publication(_: DirectTransfer, *args: object, **options: object) -> None:
    """A publication whose other side never answers."""
    await asyncio.Event().wait()


if __name__ == "__main__":
    fault, *words = sys.argv[1:]
    if fault == "trainer":
        Trainer.step = trainer
    elif fault == "engine":
        Scheduler.step = engine
    elif fault == "event_loop":
        loop.tell = event_loop
    elif fault == "interpreter":
        Trainer.step = interpreter
    elif fault == "publication":
        DirectTransfer.publish = publication
    sys.exit(main(words))
