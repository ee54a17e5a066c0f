"""The picture that `live.py` draws: a Rich renderable over a `Progress`.

Fits any width from about 40 columns: two columns of numbers from 100 columns on, else one; long
lines end in an ellipsis and never wrap. Numbers that were never known are left out.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from parity.observe.curve import sparkline
from parity.observe.dashboard.progress import (
    Progress,
    duration,
    known,
    number,
    percent,
    printable,
)

WIDE = 100  # columns from which the numbers stand in two columns
_NUM_MESSAGES = 3
_SPARK_WIDTH = 24


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    text: str
    style: str = ""


class Panel:
    """Draws a `Progress`; `lock` guards it while it is read."""

    def __init__(self, progress: Progress, lock: threading.Lock) -> None:
        self._progress = progress
        self._lock = lock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            parts = list(self._parts(options))
        yield from parts

    def hidden_messages(self) -> list[str]:
        """The texts that the picture has no room for, oldest first."""
        with self._lock:
            return [
                _worded(m.text, m.count) for m in list(self._progress.messages)[:-_NUM_MESSAGES]
            ]

    def _parts(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        progress, width = self._progress, options.max_width
        encoding = options.encoding
        facts = "  ".join(f"{key} {value}" for key, value in progress.facts.items())
        name, facts = printable(progress.title, encoding), printable(facts, encoding)
        overflow = _overflow(options)
        title = Text(no_wrap=True, overflow=overflow)
        title.append("parity ", "bold cyan").append(name, "bold").append(f"  {facts}", "dim")
        yield title
        yield self._bar(options)
        rows = self._rows(is_ascii=options.ascii_only)
        if width >= WIDE:
            half = (len(rows) + 1) // 2
            both = Table.grid(expand=True, padding=(0, 2))
            both.add_column(ratio=1)
            both.add_column(ratio=1)
            both.add_row(_column(rows[:half], overflow), _column(rows[half:], overflow))
            yield both
        else:
            yield _column(rows, overflow)
        for message in list(progress.messages)[-_NUM_MESSAGES:]:
            text = printable(_worded(message.text, message.count), encoding)
            yield Text(f"! {text}", "yellow")

    def _bar(self, options: ConsoleOptions) -> Table:
        progress, width, encoding = self._progress, options.max_width, options.encoding
        took = f"{duration(progress.elapsed_s)} gone, {duration(progress.left_s)} left"
        since = f" {duration(progress.activity_s)}" if progress.activity_s >= 2 else ""
        grid = Table.grid(padding=(0, 1))
        for _ in range(4):
            grid.add_column(no_wrap=True, overflow=_overflow(options))
        grid.add_row(
            Text(f"step {progress.step}/{progress.total_steps}", "bold"),
            ProgressBar(
                total=max(1, progress.total_steps),
                completed=progress.step,
                width=max(4, min(40, width // 5)),
            ),
            Text(took),
            Text(printable(f"{progress.now}{since}", encoding), "cyan"),
        )
        return grid

    def _rows(self, *, is_ascii: bool) -> list[_Row]:
        found = (
            self._reward(is_ascii=is_ascii),
            self._accuracy(),
            self._number("loss", "train/loss"),
            self._lengths(),
            self._kl(),
            self._number("entropy", "train/entropy", "{} nats"),
            self._number("gradient", "train/grad_norm", "norm {}"),
            self._lag(),
            self._speed(),
            self._time(),
            self._groups(),
        )
        return [row for row in found if row is not None]

    def _value(self, name: str) -> float | None:
        return known(self._progress.metrics, name)

    def _number(self, label: str, name: str, wording: str = "{}") -> _Row | None:
        value = self._value(name)
        return None if value is None else _Row(label, wording.format(number(value)))

    def _reward(self, *, is_ascii: bool) -> _Row | None:
        reward, so_far = self._value("rollout/raw_reward"), self._progress.so_far
        if reward is not None:
            line = sparkline(self._progress.rewards, width=_SPARK_WIDTH, is_ascii=is_ascii)
            return _Row("reward", f"{number(reward):<6} {line}", "bold green")
        if so_far is not None and self._progress.step == 0:
            return _Row("reward", f"{number(so_far[0])} over {so_far[1]} answers", "bold green")
        return None

    def _accuracy(self) -> _Row | None:
        first, last = self._progress.eval_first, self._progress.eval_last
        if first is None or last is None:
            return None
        text = number(known(first[1], "eval/accuracy"))
        if last is not first:
            text = f"{text} -> {number(known(last[1], 'eval/accuracy'))} at step {last[0]}"
        low, high = known(last[1], "eval/accuracy_low"), known(last[1], "eval/accuracy_high")
        if low is not None and high is not None:
            text = f"{text}  ({number(low)} to {number(high)})"
        return _Row("accuracy", text, "bold")

    def _lengths(self) -> _Row | None:
        mean, longest = (self._value(f"rollout/response_tokens_{n}") for n in ("mean", "max"))
        if mean is None:
            return None
        cut = percent(self._value("rollout/truncated_share"))
        return _Row("answers", f"{number(mean)} tokens, longest {number(longest)}, {cut} cut")

    def _kl(self) -> _Row | None:
        pairs = (
            ("step", "train/ppo_kl"),
            ("reference", "train/kl_reference"),
            ("engine", "train/train_rollout_kl"),
        )
        found = [(label, self._value(name)) for label, name in pairs]
        text = ", ".join(f"{label} {number(value)}" for label, value in found if value is not None)
        return _Row("kl", text) if text else None

    def _lag(self) -> _Row | None:
        mean, largest = self._value("rollout/lag_mean"), self._value("rollout/lag_max")
        return None if mean is None else _Row("lag", f"mean {number(mean)}, max {number(largest)}")

    def _speed(self) -> _Row | None:
        tokens, step_s = self._value("time/tokens_per_s"), self._value("time/step_s")
        if tokens is None and step_s is None:
            return None
        return _Row("speed", f"{number(tokens)} tokens/s, {number(step_s)} s/step")

    def _time(self) -> _Row | None:
        words = ("generate", "generating"), ("train", "training"), ("wait", "waiting")
        found = [(word, self._value(f"time/{name}_share")) for name, word in words]
        text = ", ".join(f"{word} {percent(share)}" for word, share in found if share is not None)
        return _Row("time", text) if text else None

    def _groups(self) -> _Row | None:
        equal = self._value("rollout/zero_spread_share")
        if equal is None:
            return None
        return _Row("groups", f"{percent(equal)} without a difference in reward")


def _column(rows: list[_Row], overflow: OverflowMethod) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=9, no_wrap=True)
    grid.add_column(no_wrap=True, overflow=overflow)
    for row in rows:
        grid.add_row(Text(row.label, "dim"), Text(row.text, row.style))
    return grid


def _overflow(options: ConsoleOptions) -> OverflowMethod:
    """How a long line ends: Rich's ellipsis is a character that not every terminal has."""
    return "crop" if options.ascii_only else "ellipsis"


def _worded(text: str, count: int) -> str:
    return f"{text} (x{count})" if count > 1 else text
