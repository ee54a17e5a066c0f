"""`display=plain`: one line per step, for logs, pipes and CI."""

import threading
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.text import Text

from parity.observe.dashboard.display import Display, Metrics
from parity.observe.dashboard.progress import (
    UNKNOWN,
    Progress,
    closing,
    duration,
    known,
    number,
    percent,
    printable,
)
from parity.observe.summary import Summary

_COLUMNS = (  # label, metric, wording
    ("reward", "rollout/raw_reward", number),
    ("loss", "train/loss", number),
    ("length", "rollout/response_tokens_mean", number),
    ("cut", "rollout/truncated_share", percent),
    ("no_spread", "rollout/zero_spread_share", percent),
    ("kl", "train/ppo_kl", number),
    ("entropy", "train/entropy", number),
    ("grad_norm", "train/grad_norm", number),
    ("lag", "rollout/lag_mean", number),
    ("tokens/s", "time/tokens_per_s", number),
)


class PlainDisplay(Display):
    """Prints a line for everything that happens."""

    def __init__(
        self,
        *,
        total_steps: int,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._progress = Progress(total_steps=total_steps, clock=clock)
        self._lock = threading.Lock()

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        """Print the title and the facts."""
        self._progress.take_start(title, facts)
        words = (f"{key}={value}" for key, value in self._progress.facts.items())
        self._print("  ".join([self._progress.title, *words]))

    def activity(self, text: str) -> None:
        """Print what goes on, until the first step; later only steps count."""
        before = self._progress.now
        self._progress.take_activity(text)
        if self._progress.now != before and self._progress.step == 0:
            self._print(self._progress.now)

    def rewards_so_far(self, mean: float, count: int) -> None:
        """Print the first rewards, once."""
        if self._progress.so_far is None and self._progress.step == 0:
            self._progress.so_far = mean, count
            self._print(f"first rewards: mean {number(mean)} over {count} answers")

    def step(self, step: int, metrics: Metrics) -> None:
        """Print the known numbers of the step."""
        self._progress.take_step(step, metrics)
        parts = [f"step {step}/{self._progress.total_steps}"]
        for label, name, wording in _COLUMNS:
            if (value := known(metrics, name)) is not None:
                parts.append(f"{label} {wording(value)}")
        left = duration(self._progress.left_s)
        self._print("  ".join(parts if left == UNKNOWN else [*parts, f"left {left}"]))

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Print the accuracy with its interval, and the first one for comparison."""
        self._progress.take_evaluation(step, metrics)
        low, high = known(metrics, "eval/accuracy_low"), known(metrics, "eval/accuracy_high")
        interval = "" if low is None or high is None else f" ({number(low)} to {number(high)})"
        text = f"evaluation at step {step}: {number(known(metrics, 'eval/accuracy'))}{interval}"
        first = self._progress.eval_first
        if first is not None and first is not self._progress.eval_last:
            text += f", first {number(known(first[1], 'eval/accuracy'))}"
        self._print(text)

    def message(self, text: str) -> None:
        """Print a text; one that came before is only counted."""
        self._progress.take_message(text)
        newest = self._progress.messages[-1]
        if newest.count == 1:
            self._print(f"note: {newest.text}")

    def finish(self, summary: Summary) -> None:
        """Print what the run came to."""
        for line in closing(summary):
            self._print(line)

    def close(self) -> None:
        """Nothing is open."""

    def _print(self, text: str) -> None:
        with self._lock:
            line = f"[{duration(self._progress.elapsed_s)}] {text}"
            shown = Text(printable(line, self._console.encoding))
            self._console.print(shown, soft_wrap=True, highlight=False)
