"""The contract of a display: what a person watching the run sees.

The loop calls it from one thread; every call returns at once (no drawing inside) and never
raises for what it is shown. Order: `start`, then anything any number of times, then `finish`
where the run ended in good order; `close` always, and as often as one likes. Metric values
may be unknown (None, NaN) or absent; they're shown as `-` or left out, never as 0.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

from parity.observe.summary import Summary

DisplayChoice = Literal["auto", "live", "plain", "none"]
Metrics = Mapping[str, float | None]


class Display(ABC):
    """Shows a run to a person; a context manager that closes itself."""

    @abstractmethod
    def start(self, title: str, facts: Mapping[str, str]) -> None:
        """Begin: the name of the run and a few facts about it (model, platform, folder)."""

    @abstractmethod
    def activity(self, text: str) -> None:
        """What the run does now: loading model, generating, training, evaluating."""

    @abstractmethod
    def rewards_so_far(self, mean: float, count: int) -> None:
        """The mean reward over `count` answers, before the first step ends."""

    @abstractmethod
    def step(self, step: int, metrics: Metrics) -> None:
        """One optimizer step is done."""

    @abstractmethod
    def evaluation(self, step: int, metrics: Metrics) -> None:
        """An evaluation is done, of the weights after `step`."""

    @abstractmethod
    def message(self, text: str) -> None:
        """Something that a person should read: a warning or a piece of advice."""

    @abstractmethod
    def finish(self, summary: Summary) -> None:
        """The run has ended; shows what it came to and gives the terminal back."""

    @abstractmethod
    def close(self) -> None:
        """Give the terminal back, also after an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MessageHandler(logging.Handler):
    """Shows log records from WARNING on as messages of a display."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record; errors go where logging sends its own."""
        try:
            text = self.format(record)
        except (TypeError, ValueError, KeyError):
            self.handleError(record)
        else:
            self._display.message(text)
