"""The register of waits: who waits for what since when, and what each role did last.

    with waiting("driver", "the trainer's step 3", deadline_s=3600, limit="supervise.step_..."):
        await ...

One register per process, like logging's: parts that know nothing of each other enter their
waits, and the watchdog reads them. Entering and leaving costs a few microseconds and may
be done in any thread. Nothing here ends a wait: `watchdog.py` does.
"""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Event:
    """The last that a role was seen to do."""

    text: str
    at_s: float  # time.monotonic()


@dataclass(eq=False, slots=True)
class Wait:
    """One wait; a context manager that is in the register while it lasts."""

    owner: str  # who waits
    what: str  # reads on from "waits for"
    deadline_s: float | None = None  # None: ended by its owner, and here only to be shown
    limit: str = ""  # where the deadline comes from: a config key
    hint: str = ""  # what to try when it has passed
    progress: Callable[[], object] | None = None  # a new value begins the deadline anew
    register: "Waits | None" = None
    number: int = -1
    thread: int = 0
    began_s: float = 0.0  # time.monotonic()

    def __enter__(self) -> "Wait":
        register = self.register or WAITS
        self.thread = threading.get_ident()
        self.began_s = time.monotonic()
        self.number = register.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        (self.register or WAITS).leave(self, error)

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s


@dataclass(eq=False)
class Waits:
    """The open waits and the last event of each role; any thread may use it."""

    _open: dict[int, Wait] = field(default_factory=dict[int, Wait])
    _events: dict[str, Event] = field(default_factory=dict[str, Event])
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def enter(self, wait: Wait) -> int:
        """Add an open wait; its number."""
        number = next(self._numbers)
        self._open[number] = wait
        self.note(wait.owner, f"began to wait for {wait.what}")
        return number

    def leave(self, wait: Wait, error: BaseException | None) -> None:
        """Take a wait out; `error` is what broke it off."""
        self._open.pop(wait.number, None)
        how = "had waited" if error is None else f"broke off ({type(error).__name__}) after"
        self.note(wait.owner, f"{how} {wait.age_s:.1f} s for {wait.what}")

    def note(self, role: str, text: str) -> None:
        """Remember the last event of a role: its sign of life."""
        self._events[role] = Event(text, time.monotonic())

    def open(self) -> list[Wait]:
        """What is waited for now, oldest first."""
        return list(self._open.values())

    def events(self) -> dict[str, Event]:
        """The last event of each role."""
        return dict(self._events)

    def clear(self) -> None:
        """Forget everything; for the beginning of a run."""
        self._open.clear()
        self._events.clear()


WAITS = Waits()
note = WAITS.note


def waiting(
    owner: str,
    what: str,
    *,
    deadline_s: float | None,
    limit: str = "",
    hint: str = "",
    progress: Callable[[], object] | None = None,
) -> Wait:
    """A wait of this process, in the register while its `with` block runs.

    Args:
        owner: who waits: driver, trainer, engine, ...
        what: what for; reads on from "waits for".
        deadline_s: seconds after which the watchdog ends the run; None where the owner ends
            the wait itself and it is entered only to be shown.
        limit: the config key that sets the deadline.
        hint: one sentence, what to try.
        progress: read by the watchdog in its thread, so it must neither block nor change
            anything; the deadline begins anew with every new value.
    """
    return Wait(owner, what, deadline_s, limit, hint, progress)
