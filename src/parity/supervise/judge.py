"""Decides whether something has waited too long; used by the watchdog, a pure bookkeeper.

It has a clock of its own, which counts at most a few ticks per look: while the whole process
is stopped (Ctrl-Z, a suspended machine) no deadline passes. Invariant: what is overdue had its
full deadline in seconds in which this process ran, since its last sign of progress.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parity.supervise.waits import Wait

_MOST_TICKS_PER_LOOK = 10


@dataclass(frozen=True, slots=True)
class Overdue:
    """A wait that has passed its deadline."""

    owner: str
    what: str
    waited_s: float  # since it began, or since its last progress
    deadline_s: float
    limit: str = ""
    hint: str = ""
    has_progress: bool = False  # the time counts from the last progress

    def sentence(self) -> str:
        """Who waited for what, how long, and what was allowed."""
        without = " without any progress" if self.has_progress else ""
        limit = f" ({self.limit})" if self.limit else ""
        return (
            f"{self.owner} waited {self.waited_s:.1f} s{without} for {self.what}; "
            f"at most {self.deadline_s:g} s are allowed{limit}"
        )


@dataclass(frozen=True, slots=True)
class Watch:
    """A role that must show progress while it is busy; both are read in the watchdog's thread."""

    owner: str
    what: str
    is_busy: Callable[[], bool]
    progress: Callable[[], object]
    deadline_s: float
    limit: str = ""
    hint: str = ""


@dataclass(slots=True)
class _Seen:
    since_s: float
    value: object


class Judge:
    """Looks at waits and roles, again and again."""

    def __init__(self, tick_s: float) -> None:
        """`tick_s` is the time between two looks."""
        self._tick_s = tick_s
        self._last_s: float | None = None
        self._seen: dict[object, _Seen] = {}
        self.now_s = 0.0  # seconds in which the process ran

    def look(
        self, real_s: float, waits: Sequence[Wait], watches: Sequence[Watch]
    ) -> Overdue | None:
        """What is overdue, the longest first; `real_s` is a monotonic clock."""
        if self._last_s is not None:
            self.now_s += min(real_s - self._last_s, _MOST_TICKS_PER_LOOK * self._tick_s)
        self._last_s = real_s
        found = [*map(self._wait, waits), *map(self._watch, watches)]
        open_keys = {*waits, *watches}
        self._seen = {key: seen for key, seen in self._seen.items() if key in open_keys}
        late = [overdue for overdue in found if overdue is not None]
        return max(late, key=lambda overdue: overdue.waited_s - overdue.deadline_s, default=None)

    def _wait(self, wait: Wait) -> Overdue | None:
        if wait.deadline_s is None:
            return None
        value = None if wait.progress is None else _read(wait.progress)
        waited_s = self._age(wait, value)
        if waited_s <= wait.deadline_s:
            return None
        return Overdue(
            wait.owner,
            wait.what,
            waited_s,
            wait.deadline_s,
            wait.limit,
            wait.hint,
            has_progress=wait.progress is not None,
        )

    def _watch(self, watch: Watch) -> Overdue | None:
        if not _read(watch.is_busy):
            self._seen.pop(watch, None)
            return None
        waited_s = self._age(watch, _read(watch.progress))
        if waited_s <= watch.deadline_s:
            return None
        return Overdue(
            watch.owner,
            watch.what,
            waited_s,
            watch.deadline_s,
            watch.limit,
            watch.hint,
            has_progress=True,
        )

    def _age(self, key: object, value: object) -> float:
        seen = self._seen.get(key)
        if seen is None or seen.value != value:
            seen = self._seen[key] = _Seen(self.now_s, value)
        return self.now_s - seen.since_s


def _read(source: Callable[[], object]) -> object:
    """What it says now; a part that is being built or closed says nothing, which is no progress."""
    try:
        return source()
    except Exception:  # noqa: BLE001 the supervisor: a broken source must not end the watch
        return None
