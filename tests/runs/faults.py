"""`python faults.py {"FAULT": [WORDS...], ...}`: the command line with one part that gets stuck.

Run by `test_supervise.py` in processes of their own, because only there the watchdog can end
them. `FAULT.out`, `.err`, `.pid` and, at the end, `.code` tell of each.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from parity import loop
from parity.cli.main import main
from parity.training.trainer import Trainer

FOR_EVER_S = 3600


def trainer(_: object, *args: object) -> None:
    """The trainer's thread waits inside C code, with the interpreter free for others."""
    sys.stdout.write("stuck\n")
    sys.stdout.flush()
    ctypes.CDLL(None).sleep(FOR_EVER_S)


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


FAULTS = {
    "trainer": (Trainer, "step", trainer),
    "event_loop": (loop, "tell", event_loop),
    "interpreter": (Trainer, "step", interpreter),
}


def run(fault: str, words: list[str]) -> None:
    """In a process of its own, with its output in files named after the fault."""
    for fd, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{fault}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), fd)
    owner, name, stuck = FAULTS[fault]
    setattr(owner, name, stuck)
    os._exit(main([*words, f"output.name={fault}"]))


def run_all(plans: dict[str, list[str]]) -> None:
    """Fork one process per fault, since importing takes longest; say how each ended."""
    faults: dict[int, str] = {}
    for fault, words in plans.items():
        pid = os.fork()
        if pid == 0:
            run(fault, words)
        faults[pid] = fault
        Path(f"{fault}.pid").write_text(str(pid))
    for _ in plans:
        pid, status = os.wait()
        code = Path(f"{faults[pid]}.part")
        code.write_text(str(os.waitstatus_to_exitcode(status)))
        code.rename(f"{faults[pid]}.code")


if __name__ == "__main__":
    run_all(json.loads(sys.argv[1]))
