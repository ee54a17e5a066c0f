"""`display=live`: a panel in the terminal that shows the run as it goes.

Calls only note what is new; a thread of its own draws, at most four times a second (less often
where drawing is slow) and at least once, for the clock. Prints and logs of other code appear
above the panel. The terminal is given back by `finish` and `close`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.live import Live

from parity.observe.dashboard.display import Display, Metrics
from parity.observe.dashboard.panel import Panel
from parity.observe.dashboard.progress import Progress, closing, printable
from parity.observe.summary import Summary

REFRESH_S = 0.25
CLOCK_S = 1.0
MAX_SHARE = 0.008  # of one core, for drawing
_logger = logging.getLogger(__name__)


class LiveDisplay(Display):
    """Draws the state of the run over itself."""

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
        self._panel = Panel(self._progress, self._lock)
        self._is_new = False
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._live = Live(
            get_renderable=self._render,
            console=console,
            auto_refresh=False,
            vertical_overflow="crop",
        )

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        """Take the lower part of the terminal and begin to draw."""
        with self._lock:
            self._progress.take_start(title, facts)
        self._live.start(refresh=True)
        self._thread = threading.Thread(target=self._draw, name="live-display", daemon=True)
        self._thread.start()

    def activity(self, text: str) -> None:
        """Note what goes on."""
        with self._lock:
            self._is_new = self._is_new or text != self._progress.now
            self._progress.take_activity(text)

    def rewards_so_far(self, mean: float, count: int) -> None:
        """Note the rewards of the step that is under way."""
        with self._lock:
            self._progress.so_far = mean, count
            self._is_new = self._is_new or self._progress.step == 0

    def step(self, step: int, metrics: Metrics) -> None:
        """Note the numbers of a step."""
        with self._lock:
            self._progress.take_step(step, metrics)
            self._is_new = True

    def evaluation(self, step: int, metrics: Metrics) -> None:
        """Note the result of an evaluation."""
        with self._lock:
            self._progress.take_evaluation(step, metrics)
            self._is_new = True

    def message(self, text: str) -> None:
        """Note a text for the area below the numbers."""
        with self._lock:
            self._progress.take_message(text)
            self._is_new = True

    def finish(self, summary: Summary) -> None:
        """Draw once more, give the terminal back and print what the run came to."""
        with self._lock:
            self._progress.take_end(summary.status)
        self.close()
        self._say(closing(summary))

    def close(self) -> None:
        """Give the terminal back; the last picture stays, all messages below it."""
        if self._thread is None:
            return
        self._is_closing.set()
        self._thread.join()
        self._thread = None
        self._refresh()
        try:
            self._live.stop()
        except (OSError, ValueError) as error:
            _logger.warning("event=terminal_lost error=%s", error)
            return
        self._say(self._panel.hidden_messages())

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            text = printable(line, self._console.encoding)
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> None:
        drawn_at, pause_s = time.monotonic(), REFRESH_S
        while not self._is_closing.wait(pause_s):
            with self._lock:
                is_due = self._is_new or time.monotonic() - drawn_at >= CLOCK_S
                self._is_new = False
            if is_due:
                before = time.thread_time()
                self._refresh()
                cost_s = time.thread_time() - before
                pause_s = min(CLOCK_S, max(REFRESH_S, cost_s / MAX_SHARE))
                drawn_at = time.monotonic()

    def _refresh(self) -> None:
        """Draw; a terminal that went away (closed pipe, lost connection) ends the drawing only."""
        try:
            self._live.refresh()
        except (OSError, ValueError) as error:
            if not self._is_closing.is_set():
                _logger.warning("event=terminal_lost error=%s", error)
            self._is_closing.set()

    def _render(self) -> Panel:
        return self._panel
