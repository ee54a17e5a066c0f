"""The one page that a run leaves when a wait has passed its deadline.

`compose` gathers it, `write` puts it on the disk: whole, synced, and before anything ends.
The first lines say all that most readers need; stacks come last.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from parity.supervise import stacks
from parity.supervise.judge import Overdue, Watch
from parity.supervise.waits import Waits

FILE_NAME = "hang.txt"


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What the watchdog knows when it gives up waiting."""

    reason: str  # a sentence without its full stop: why the run is ended
    overdue: Overdue | None = None  # what the watchdog found; None: a part gave up by itself
    waits: Waits
    watches: Sequence[Watch] = ()
    figures: Callable[[], dict[str, object]] = field(default=dict)  # progress, by name
    loop: asyncio.AbstractEventLoop | None = None
    run_name: str = ""


def compose(scene: Scene) -> str:
    """The page as text; takes seconds at most where child processes are looked at."""
    parts: tuple[tuple[str, Callable[[], Iterable[str]]], ...] = (
        ("Who waits for what", lambda: _waits(scene.waits)),
        ("The last event of each role", lambda: _events(scene.waits)),
        ("Progress", lambda: _figures(scene)),
        ("What to try", lambda: _advice(scene)),
        ("Tasks of the event loop, and where they wait", lambda: _tasks(scene)),
        ("Threads of this process, innermost call first", stacks.threads),
        ("Child processes", stacks.children),
    )
    lines = [head(scene.reason)]
    for title, lines_of in parts:
        lines += ["", title, "-" * len(title), *_safely(lines_of)]
    return "\n".join(lines) + "\n"


def head(reason: str) -> str:
    """The first line: why the run was ended."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return f"{reason.removesuffix('.')}. The run was ended at {now}."


def summary(text: str) -> str:
    """The first lines of a page, up to the stacks."""
    return text.partition("\n\nTasks of the event loop")[0].rstrip() + "\n"


def write(text: str, run_dir: Path) -> Path:
    """Put the page into the run folder, whole and synced; raises OSError where that fails."""
    path = run_dir / FILE_NAME
    unfinished = path.with_suffix(".txt.part")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return path


def _waits(waits: Waits) -> Iterator[str]:
    found = waits.open()
    if not found:
        yield "  nothing is waited for"
    for wait in found:
        allowed = "ended by its owner" if wait.deadline_s is None else f"{wait.deadline_s:g} s"
        limit = f", {wait.limit}" if wait.limit else ""
        yield (
            f"  {wait.owner} waits for {wait.what} "
            f"since {wait.age_s:.1f} s (allowed: {allowed}{limit})"
        )


def _events(waits: Waits) -> Iterator[str]:
    now_s = time.monotonic()
    for role, event in sorted(waits.events().items()):
        yield f"  {role}: {event.text}, {now_s - event.at_s:.1f} s ago"


def _figures(scene: Scene) -> Iterator[str]:
    for name, value in scene.figures().items():
        yield f"  {name}: {value}"
    for watch in scene.watches:
        is_busy, value = watch.is_busy(), watch.progress()
        yield f"  {watch.owner}: {'busy' if is_busy else 'idle'}, progress {value}"


def _advice(scene: Scene) -> Iterator[str]:
    overdue = scene.overdue
    if overdue is not None and overdue.hint:
        yield f"  * {overdue.hint}"
    if overdue is not None and overdue.limit:
        yield f"  * If it really takes so long, raise {overdue.limit}."
    yield "  * Read the stacks below: what should make progress is stuck there."
    name = scene.run_name or "RUN"
    yield f"  * `parity resume {name}` goes on from the newest checkpoint, if there is one."


def _tasks(scene: Scene) -> Iterable[str]:
    return ["  there is no event loop"] if scene.loop is None else stacks.tasks(scene.loop)


def _safely(lines_of: Callable[[], Iterable[str]]) -> list[str]:
    """The lines of one part; a part that can't be told must not cost the others."""
    lines: list[str] = []
    try:
        lines.extend(lines_of())
    except Exception as error:  # noqa: BLE001 the supervisor: the page matters more than the part
        lines.append(f"  can't be told: {type(error).__name__}: {error}")
    return lines
