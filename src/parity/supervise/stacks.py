"""What every thread, task and child process is at, as text.

Used by `page.py` from the watchdog's thread. Each part is bounded in time and size, and what
can't be read is said to be so: a page with a gap is worth more than none. Stacks of child
processes come from py-spy where it is installed and may look; else the kernel says what it
knows of them.
"""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil

_PY_SPY_TIMEOUT_S = 5.0
_CHILDREN_TIMEOUT_S = 20.0
_MOST_FRAMES, _MOST_TASKS, _MOST_CHILDREN = 40, 40, 64
_STATUS_KEYS = ("State", "VmRSS", "Threads", "voluntary_ctxt_switches")


def threads() -> Iterator[str]:
    """The Python stack of every thread of this process, and what the kernel says of it."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        thread = known.get(ident)
        name = thread.name if thread is not None else "(not started by Python)"
        native = thread.native_id if thread is not None else None
        yield f"Thread {name} (id {native}{_kernel_view(native)})"
        yield from _frames(frame)


def _frames(frame: FrameType) -> Iterator[str]:
    for text in traceback.StackSummary.extract(
        traceback.walk_stack(frame), limit=_MOST_FRAMES
    ).format():
        yield from ("  " + line for line in text.rstrip().splitlines())


def _kernel_view(native_id: int | None) -> str:
    """State and kernel function of one thread of ours: running, or waiting in what."""
    if native_id is None:
        return ""
    folder = Path(f"/proc/self/task/{native_id}")
    state = _status(folder).get("State")
    place = _read(folder / "wchan")
    return "".join(f", {part}" for part in (state, place) if part and part != "0")


def tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Where each task of the event loop waits; equal places are counted together."""
    try:
        found = asyncio.all_tasks(loop)
    except RuntimeError as error:  # the set changed while it was copied, again and again
        yield f"  can't be read now ({error})"
        return
    places = Counter[str]()
    names: dict[str, str] = {}
    for task in found:
        place = _innermost(task)
        places[place] += 1
        names.setdefault(place, task.get_name())
    for place, number in places.most_common(_MOST_TASKS):
        more = f" and {number - 1} more" if number > 1 else ""
        yield f"  {names[place]}{more}: {place}"
    if len(places) > _MOST_TASKS:
        yield f"  and {len(places) - _MOST_TASKS} more places"


def _innermost(task: "asyncio.Task[object]") -> str:
    """The chain of coroutines from the task's own to the one that waits, outermost first."""
    steps: list[str] = []
    waiter: object = task.get_coro()
    while waiter is not None and len(steps) < _MOST_FRAMES:
        frame: FrameType | None = getattr(waiter, "cr_frame", None)
        if frame is None:
            break
        code = frame.f_code
        steps.append(f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})")
        waiter = getattr(waiter, "cr_await", None)
    return " > ".join(steps) or "not begun"


def children() -> Iterator[str]:
    """Every process that this one has started, directly or not: command, state, stack.

    The dead that nobody has collected are counted together at the end.
    """
    ends_s = time.monotonic() + _CHILDREN_TIMEOUT_S
    py_spy = shutil.which("py-spy")
    found = psutil.Process().children(recursive=True)
    dead = [process for process in found if _is_dead(process)]
    alive = [process for process in found if process not in dead]
    if not found:
        yield "  none"
    for process in alive[:_MOST_CHILDREN]:
        yield f"Process {process.pid}: {_command(process)}"
        folder = Path(f"/proc/{process.pid}")
        for key, value in _status(folder).items():
            yield f"  {key}: {value}"
        left_s = min(_PY_SPY_TIMEOUT_S, ends_s - time.monotonic())
        stack = _py_spy(py_spy, process.pid, left_s) if py_spy and left_s > 0 else None
        yield from _indented(stack) if stack else _kernel_stack(folder)
    if alive and not py_spy:
        yield "  (Python stacks of child processes need py-spy: pip install py-spy)"
    if len(alive) > _MOST_CHILDREN:
        yield f"  and {len(alive) - _MOST_CHILDREN} more"
    if dead:
        pids = ", ".join(str(process.pid) for process in dead[:_MOST_CHILDREN])
        yield f"Dead, not collected by the process that started them: {len(dead)} ({pids})"


def _is_dead(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:300] or process.name()
    except psutil.Error as error:
        return f"(can't be read: {error})"


def _py_spy(program: str, pid: int, timeout_s: float) -> str | None:
    """The Python stacks of a process, without stopping it; None where it can't be looked at."""
    try:
        found = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout


def _kernel_stack(folder: Path) -> Iterator[str]:
    """Where each thread of a process waits in the kernel, as far as we may know."""
    for name in ("wchan", "syscall"):
        text = _read(folder / name)
        if text:
            yield f"  {name}: {text}"
    stack = _read(folder / "stack")  # readable by root alone
    yield from _indented(stack) if stack else ()


def _status(folder: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in _read(folder / "status").splitlines())
    found = {key: value.strip() for key, _, value in lines}
    return {key: found[key] for key in _STATUS_KEYS if key in found}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _indented(text: str) -> Iterator[str]:
    return ("  " + line for line in text.rstrip().splitlines())
