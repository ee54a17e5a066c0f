"""Where the wall-clock time of a run goes, phase by phase.

The loop wraps what it does in `with timer.phase("train"):`; `step()` closes a step and
`total()` tells the whole run. Thread-safe; usable from threads and asyncio tasks alike.

Invariants: a phase that several threads or tasks are in at once counts once (busy time, not
the sum). Nested phases of one thread or task exclude each other: the inner one counts. So the
phases of one role never sum to more than the elapsed time, while phases of different roles
(generate, train) may overlap and together exceed it. A phase that was never entered is unknown.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

GENERATE = "generate"  # the engine is decoding
TRAIN = "train"  # the trainer computes
WAIT = "wait"  # the trainer waits for groups
PUBLISH = "publish"
EVAL = "eval"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds by phase within `elapsed_s` seconds of wall-clock time."""

    elapsed_s: float
    seconds: Mapping[str, float]

    def share(self, phase: str) -> float | None:
        """The part of the elapsed time in which `phase` went on; None where unknown."""
        if phase not in self.seconds or self.elapsed_s <= 0:
            return None
        return self.seconds[phase] / self.elapsed_s

    def metrics(self) -> dict[str, float | None]:
        """The `time/` metrics of this span; None for phases that were never entered."""
        generate = self.share(GENERATE)
        return {
            "time/step_s": self.elapsed_s,
            "time/generate_share": generate,
            "time/engine_idle_share": None if generate is None else max(0.0, 1.0 - generate),
            "time/train_share": self.share(TRAIN),
            "time/wait_share": self.share(WAIT),
            "time/publish_s": self.seconds.get(PUBLISH),
            "time/eval_s": self.seconds.get(EVAL),
            "time/checkpoint_s": self.seconds.get(CHECKPOINT),
        }


class PhaseTimer:
    """Adds up the wall-clock time of phases, per step and for the whole run."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started = self._step_started = clock()
        self._before_step: dict[str, float] = {}  # seconds up to the start of this step
        self._in_step: dict[str, float] = {}
        self._active: dict[str, int] = {}  # how many threads and tasks are in a phase
        self._since: dict[str, float] = {}  # counted up to here, for active phases
        self._stacks: dict[object, list[str]] = {}  # open phases by thread or task

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the time inside the `with` block as `name`, also when it raises."""
        owner = _owner()
        with self._lock:
            stack = self._stacks.setdefault(owner, [])
            if stack:
                self._leave(stack[-1])
            stack.append(name)
            self._enter(name)
        try:
            yield
        finally:
            with self._lock:
                self._leave(stack.pop())
                if stack:
                    self._enter(stack[-1])
                else:
                    self._stacks.pop(owner, None)

    def add(self, name: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere (an engine's own busy time)."""
        if not seconds >= 0:
            raise ValueError(f"seconds of {name} is {seconds}; it must be >= 0.")
        with self._lock:
            self._in_step[name] = self._in_step.get(name, 0.0) + seconds

    def step(self) -> Times:
        """Close the step: its times; phases that go on are split here."""
        with self._lock:
            now = self._settle()
            known = {**dict.fromkeys(self._before_step, 0.0), **self._in_step}
            times = Times(now - self._step_started, known)
            for name, seconds in self._in_step.items():
                self._before_step[name] = self._before_step.get(name, 0.0) + seconds
            self._in_step = {}
            self._step_started = now
            return times

    def total(self) -> Times:
        """The times from the start of the timer until now."""
        with self._lock:
            now = self._settle()
            names = {**self._before_step, **self._in_step}
            seconds = {
                name: self._before_step.get(name, 0.0) + self._in_step.get(name, 0.0)
                for name in names
            }
            return Times(now - self._started, seconds)

    def _enter(self, name: str) -> None:
        self._active[name] = self._active.get(name, 0) + 1
        if self._active[name] == 1:
            self._since[name] = self._clock()
            self._in_step.setdefault(name, 0.0)

    def _leave(self, name: str) -> None:
        self._active[name] -= 1
        if self._active[name] == 0:
            del self._active[name]
            self._in_step[name] = (
                self._in_step.get(name, 0.0) + self._clock() - self._since.pop(name)
            )

    def _settle(self) -> float:
        """Count active phases up to now, and return now."""
        now = self._clock()
        for name, since in self._since.items():
            self._in_step[name] = self._in_step.get(name, 0.0) + now - since
            self._since[name] = now
        return now


def _owner() -> object:
    """What nests phases: the running asyncio task, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop in this thread
        task = None
    return threading.get_ident() if task is None else task
