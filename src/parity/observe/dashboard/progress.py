"""What displays know about a run, and how they word it; no terminal here.

`live.py` and `plain.py` feed it and draw from it. Invariant: constant memory, however long the
run is, and constant work per call.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parity.observe.dashboard.display import Metrics
from parity.observe.summary import Summary

UNKNOWN = "-"
_MAX_REWARDS = 240  # points of the sparkline; older ones are thinned out
_MAX_MESSAGES = 20
_MAX_LENGTH = 400  # characters of one text
_RATE_STEPS = 20  # steps that the estimate of the time left looks back on


@dataclass(slots=True)
class Message:
    """One text, and how often it came."""

    text: str
    count: int = 1


class Progress:
    """The state of a run as a display knows it."""

    def __init__(self, *, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_steps = total_steps
        self.title = ""
        self.facts: Mapping[str, str] = {}
        self.step = 0
        self.metrics: Metrics = {}
        self.rewards: list[float] = []
        self.so_far: tuple[float, int] | None = None
        self.eval_first: tuple[int, Metrics] | None = None
        self.eval_last: tuple[int, Metrics] | None = None
        self.messages: deque[Message] = deque(maxlen=_MAX_MESSAGES)
        self.now = "starting"
        self._clock = clock
        self._started = self._now_since = clock()
        self._step_ends: deque[float] = deque(maxlen=_RATE_STEPS + 1)
        self._stride = self._skipped = 1  # one reward in `_stride` is kept

    def take_start(self, title: str, facts: Mapping[str, str]) -> None:
        """Remember what the run is."""
        self.title = clean(title)
        self.facts = {clean(key): clean(value) for key, value in facts.items()}

    def take_end(self, status: str) -> None:
        """Remember how the run ended; nothing is left to wait for."""
        self._step_ends.clear()
        self.take_activity(status)

    def take_activity(self, text: str) -> None:
        """Remember what goes on, and since when."""
        if (text := clean(text)) != self.now:
            self.now, self._now_since = text, self._clock()

    def take_step(self, step: int, metrics: Metrics) -> None:
        """Remember the newest step."""
        self.step, self.metrics = step, dict(metrics)
        self._step_ends.append(self._clock())
        reward = known(metrics, "rollout/raw_reward")
        if reward is not None:
            self._keep(reward)

    def take_evaluation(self, step: int, metrics: Metrics) -> None:
        """Remember the first evaluation and the newest."""
        self.eval_last = step, dict(metrics)
        self.eval_first = self.eval_first or self.eval_last

    def take_message(self, text: str) -> None:
        """Remember a text; one that came before is counted and becomes the newest."""
        text = clean(text)
        for message in self.messages:
            if message.text == text:
                self.messages.remove(message)
                self.messages.append(Message(text, message.count + 1))
                return
        self.messages.append(Message(text))

    @property
    def elapsed_s(self) -> float:
        """Since this object was made."""
        return self._clock() - self._started

    @property
    def activity_s(self) -> float:
        """Since the current activity began."""
        return self._clock() - self._now_since

    @property
    def left_s(self) -> float | None:
        """An estimate of the time to the last step; None before two steps are done."""
        if len(self._step_ends) < 2:
            return None
        span = self._step_ends[-1] - self._step_ends[0]
        per_step = span / (len(self._step_ends) - 1)
        since = self._clock() - self._step_ends[-1]
        return max(0.0, (self.total_steps - self.step) * per_step - since)

    def _keep(self, reward: float) -> None:
        if self._skipped >= self._stride:
            self._skipped = 0
            self.rewards.append(reward)
            if len(self.rewards) > _MAX_REWARDS:
                self.rewards = self.rewards[::2]
                self._stride *= 2
        self._skipped += 1


def clean(text: str) -> str:
    """One line that can't move the cursor: control characters and surrogates become blanks."""
    line = "".join(mark if mark.isprintable() else " " for mark in text.strip())
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3] + "..."


def printable(text: str, encoding: str) -> str:
    """`text` with `?` for what a terminal of this encoding can't show."""
    return text.encode(encoding, "replace").decode(encoding)


def known(metrics: Metrics, name: str) -> float | None:
    """The value where it is a finite number."""
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def number(value: float | None) -> str:
    """Three significant digits: 0.531, 12.3, 4,120; `-` where unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share as a whole percentage; `-` where unknown."""
    return UNKNOWN if value is None else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """1:02:03 or 2:03; `-` where unknown."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def closing(summary: Summary) -> list[str]:
    """What a run came to, in a few lines."""
    took = "" if summary.train_seconds is None else f" in {duration(summary.train_seconds)}"
    reason = "" if summary.reason is None else f": {clean(summary.reason)}"
    lines = [f"{summary.status} after {summary.steps} steps{took}{reason}"]
    if summary.eval_first is not None or summary.eval_last is not None:
        lines.append(f"accuracy {number(summary.eval_first)} -> {number(summary.eval_last)}")
    return lines
