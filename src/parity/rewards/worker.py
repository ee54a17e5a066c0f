"""A grader process: builds one reward, then grades one answer after another.

Run by `process/child.py` as `python -m parity.rewards.worker`; nobody calls it by hand. It
keeps the pipe to the driver to itself: for the reward, stdin is empty and stdout is stderr, so
that no print can corrupt a reply, and a copy of the process that a reward forks never gets back
to the pipe. It imports no torch, and ends when the driver does (`process/warden.py`).
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from parity.errors import ParityError
from parity.rewards.process import limits, warden, wire
from parity.rewards.reward import Reward, checked
from parity.rewards.section import build
from parity.types import GraderFailure


def main() -> None:
    """Serve the driver until it closes the pipe."""
    requests, replies = _private_pipes()
    limits.lead_group()
    first = requests.readline()
    if not first:
        return
    setup = wire.decode_setup(first)
    limits.die_with(setup.parent_pid, signal.SIGTERM)
    warden.fork_under_warden(requests.fileno(), (replies,), setup.max_children)
    limits.end_first_without_memory()
    faulthandler.enable()
    _extend_path(setup.import_paths)
    reward = _built(setup)
    if isinstance(reward, wire.Refused):
        _write(replies, wire.encode_ready(reward))
        return
    _write(replies, wire.encode_ready())
    home, own_pid = Path.cwd(), os.getpid()
    for line in requests:
        reply = _reply(reward, line, home, setup.memory_mib)
        if os.getpid() != own_pid:
            # A copy that the reward forked came back: its reply would pass for the next answer's.
            os._exit(1)
        _write(replies, reply)


def _private_pipes() -> tuple[BinaryIO, int]:
    """Move the driver's pipes away from where a reward could reach them."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _extend_path(import_paths: Iterable[str]) -> None:
    """Import what the driver can import: its working directory first, the rest last."""
    first, *rest = import_paths
    sys.path.insert(0, first)
    sys.path.extend(path for path in rest if path not in sys.path)


def _built(setup: wire.Setup) -> Reward | wire.Refused:
    try:
        limits.limit_memory(setup.memory_mib)
        return build(setup.section)
    except ParityError as error:
        return wire.Refused(type(error).__name__, str(error))
    except MemoryError:
        return wire.Refused(
            "ConfigError",
            f"grader.memory_mib is {setup.memory_mib}, which is too little to build the reward;"
            " raise it or set grader.memory_mib=null.",
        )
    except BaseException as error:  # noqa: BLE001 - anything may come out of user code
        return wire.Refused("RewardError", f"the reward can't be built: {_described(error)}")


def _reply(reward: Reward, line: bytes, home: Path, memory_mib: int | None) -> bytes:
    """The reply for one answer, whatever the reward does short of ending the process."""
    try:
        os.chdir(home)  # where an answer before this one may have moved from
        return wire.encode_result(checked(reward.score(wire.decode_answer(line))))
    except MemoryError:
        reason, may_pass = f"ran out of memory (grader.memory_mib={memory_mib})", False
    except OSError as error:  # network, file system: may pass
        reason, may_pass = f"raised {_described(error)}", True
    except BaseException as error:  # noqa: BLE001 - the contract: it is a GraderFailure
        reason, may_pass = f"raised {_described(error)}", False
    return wire.encode_result(GraderFailure(f"the reward {reason}", retryable=may_pass))


def _described(error: BaseException) -> str:
    """Type, message and the innermost place of an exception."""
    place = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" ({code.co_filename}:{trace.tb_lineno} in {code.co_name})"
        trace = trace.tb_next
    return wire.bounded(f"{type(error).__name__}: {_message(error)}", limit=1000) + place


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as other:  # noqa: BLE001 - this, too, is user code
        return f"its message can't be had: {type(other).__name__}"


def _write(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest) :]


if __name__ == "__main__":
    main()
