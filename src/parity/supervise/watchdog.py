"""The watchdog: a thread with a clock of its own that no stuck part of a run can stop.

who        does                                       waits for
parts      enter their waits (`waits.py`)             whatever they wait for, at most a deadline
watchdog   looks, asks the event loop for an answer   its tick, or a signal
watchdog   once something is overdue: page, cancel    an end in good order, `stop_timeout_s`
watchdog   where that doesn't come: last words, exit  nothing

The order is fixed: the page is on the disk (or, if the disk refuses it, on stderr) before
anything is cancelled, and the summary says "failed" before the process ends. A run that broke
off by an error of its own, or by a second Ctrl-C, gets the same bounded time to end: a stuck
thread can't keep it.
"""

import asyncio
import dataclasses
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType

from parity.errors import DeadlineError
from parity.supervise import page
from parity.supervise.config import SuperviseConfig
from parity.supervise.judge import Judge, Overdue, Watch
from parity.supervise.sentinel import BEAT, PATIENCE, Sentinel
from parity.supervise.signals import SignalWatch
from parity.supervise.waits import WAITS, Wait, Waits

FAILED, INTERRUPTED = 1, 130
_SELF = "watchdog"
_LOOP_HINT = (
    "Something blocks the event loop's thread (MainThread below): a plug-in that sleeps, computes "
    "or reads without await; move it into a thread."
)
_INTERRUPT_GRACE_S = 3.0  # "at once": what a second Ctrl-C leaves for an end in good order
_CLOSING_S = 600.0  # trackers that upload, threads that end
_LAST_WORDS_S, _PAGE_S = 10.0, 60.0
_MOST_TICK_S, _LEAST_TICK_S = 1.0, 0.05


class Watchdog:
    """Watches one run: `with Watchdog(...) as dog: asyncio.run(...)`, around everything.

    Inside the event loop `attached` says what to cancel, and `guarding` marks the part in
    which an error ends the run.
    """

    def __init__(
        self,
        config: SuperviseConfig,
        *,
        run_dir: Path,
        waits: Waits = WAITS,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """`leave` ends the process with an exit code; tests give another."""
        self._config = config
        self._run_dir = run_dir
        self._waits = waits
        self._leave = leave
        limits = (config.loop_timeout_s, config.step_timeout_s, config.stop_timeout_s)
        shortest_s = min(*limits, config.stall_timeout_s or limits[0])
        self._tick_s = min(_MOST_TICK_S, max(_LEAST_TICK_S, shortest_s / 20))
        self._judge = Judge(self._tick_s)
        self._signals = SignalWatch()
        self._sentinel: Sentinel | None = None
        self._watches: list[Watch] = []
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._answer: Wait | None = None  # while the event loop owes one
        self._closing: Wait | None = None
        self._is_closed = False
        self._is_cancelled = False
        self._leaves_at_s: float | None = None  # on the judge's clock
        self._cause: BaseException | None = None
        self._code = FAILED
        self.error: DeadlineError | None = None
        self.last_words: Callable[[BaseException], None] = lambda error: None
        self.figures: Callable[[], dict[str, object]] = dict
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._waits.clear()
        (self._run_dir / page.FILE_NAME).unlink(missing_ok=True)  # an earlier attempt's
        page_path = str(self._run_dir / page.FILE_NAME)
        self._sentinel = Sentinel(page_path, self._config.loop_timeout_s + 5 * self._tick_s)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._is_closed = True
        self._signals.wake()
        self._thread.join()
        self._signals.close()
        if self._sentinel is not None:
            self._sentinel.close()
        if self._closing is not None:
            self._closing.__exit__(None, None, None)

    def watch(self, watch: Watch) -> None:
        """Look after a role that must show progress while it is busy."""
        self._watches.append(watch)

    @asynccontextmanager
    async def attached(self) -> AsyncGenerator[None]:
        """The task that is cancelled when something is overdue; raises DeadlineError then."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        is_done = False
        with self._signals.taken():
            try:
                yield
                is_done = True
            except BaseException as error:
                if self.error is None or not self._is_cancelled:
                    raise
                # Whatever the cancelling brought up, this is why it happened.
                is_plain = isinstance(error, asyncio.CancelledError)
                raise self.error from None if is_plain else error
            finally:
                self._detach(is_done=is_done)

    @contextmanager
    def guarding(self) -> Generator[None]:
        """Training: an error in here ends the run, even if something else can't end."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, DeadlineError) and self.error is None:
                self._told(self._scene(str(error)))  # a part gave up by itself
            self._break_off(error, FAILED, self._config.stop_timeout_s)
            raise

    def _detach(self, *, is_done: bool) -> None:
        """Nothing is left to cancel; trackers and threads have a last limit to end."""
        with self._lock:
            self._loop = self._task = self._answer = None
            if is_done:
                self._leaves_at_s = None
            elif self._leaves_at_s is not None and self._code == FAILED:
                self._leaves_at_s = self._judge.now_s + self._config.stop_timeout_s
        self._closing = Wait(
            "driver",
            "the end of trackers and threads",
            _CLOSING_S,
            hint="A tracker may be waiting for its server; leave it out of trackers.names.",
            register=self._waits,
        ).__enter__()

    # From here on: the watchdog's thread.

    def _run(self) -> None:
        while not self._is_closed:
            self._signals.wait(self._tick_s)
            self._send(BEAT)
            with self._lock:
                if self._is_closed:
                    return
            overdue = self._judge.look(time.monotonic(), self._open(), tuple(self._watches))
            self._heed_signals()
            if self._leaves_at_s is not None:
                if self._judge.now_s >= self._leaves_at_s:
                    self._end()
                    return
            elif overdue is not None:
                self._give_up(overdue)
            self._ask_loop()

    def _open(self) -> list[Wait]:
        answer = self._answer
        return [*self._waits.open(), *([] if answer is None else [answer])]

    def _ask_loop(self) -> None:
        """Have the event loop say that it runs; what it owes is a wait like any other."""
        loop = self._loop
        if loop is None or self._answer is not None:
            return
        self._answer = Wait(
            _SELF,
            "the event loop to answer",
            self._config.loop_timeout_s,
            "supervise.loop_timeout_s",
            _LOOP_HINT,
            began_s=time.monotonic(),
        )
        try:
            loop.call_soon_threadsafe(self._answered)
        except RuntimeError:  # it was closed a moment ago
            self._answer = None

    def _answered(self) -> None:
        self._answer = None

    def _heed_signals(self) -> None:
        """A signal that broke the run off, and any second one, leaves it a moment to end."""
        number, task = self._signals.num_stops, self._task
        is_broken_off = task is not None and task.cancelling() > 0 and not self._is_cancelled
        is_known = self._code == INTERRUPTED
        if not is_known and (number >= 2 or (number == 1 and is_broken_off)):
            self._break_off(KeyboardInterrupt("interrupted"), INTERRUPTED, _INTERRUPT_GRACE_S)

    def _break_off(self, error: BaseException, code: int, grace_s: float) -> None:
        """Something ends the run: it has so long to end in good order."""
        with self._lock:
            leaves_at_s = self._judge.now_s + grace_s
            if self._leaves_at_s is None or code == INTERRUPTED:
                self._leaves_at_s = min(leaves_at_s, self._leaves_at_s or leaves_at_s)
                self._cause, self._code = error, code

    def _give_up(self, overdue: Overdue) -> None:
        """Write the page, then ask for an end in good order."""
        reason = overdue.sentence()
        answer = self._answer
        if answer is not None and overdue.owner != _SELF and answer.age_s > overdue.deadline_s / 2:
            # Everything is driven by the event loop, so its silence comes before any other.
            reason = f"the event loop doesn't answer since {answer.age_s:.1f} s, and so {reason}"
            overdue = dataclasses.replace(overdue, hint=_LOOP_HINT)
        place = self._told(self._scene(reason, overdue))
        self.error = error = DeadlineError(
            f"{reason}; {place} says who waits for what, with all stacks."
        )
        self._break_off(error, FAILED, self._config.stop_timeout_s)
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._cancel)

    def _scene(self, reason: str, overdue: Overdue | None = None) -> page.Scene:
        return page.Scene(
            reason=reason,
            overdue=overdue,
            waits=self._waits,
            watches=tuple(self._watches),
            figures=self.figures,
            loop=self._loop,
            run_name=self._run_dir.name,
        )

    def _send(self, sign: bytes) -> None:
        if self._sentinel is not None:
            self._sentinel.send(sign)

    def _told(self, scene: page.Scene) -> str:
        """The page on the disk and its first lines on stderr; where it lies."""
        self._send(PATIENCE)
        text = page.compose(scene)
        problems: list[str] = []

        def write() -> None:
            try:
                page.write(text, self._run_dir)
            except OSError as error:
                problems.append(f"it can't be written: {error}")

        if not _bounded(write, _PAGE_S):
            problems.append(f"the disk took longer than {_PAGE_S:.0f} s")
        path = self._run_dir / page.FILE_NAME
        shown = text if problems else f"{page.summary(text)}\nThe whole page: {path}\n"
        _bounded(lambda: _tell(shown), _LAST_WORDS_S)
        return f"stderr ({path}: {problems[0]})" if problems else str(path)

    def _cancel(self) -> None:
        """In the event loop: end the run's task, if it is still there."""
        if self._task is not None:
            self._is_cancelled = True
            self._task.cancel()

    def _end(self) -> None:
        """The end in good order didn't come: say so in the summary, and end the process."""
        self._send(PATIENCE)
        cause = self._cause
        assert cause is not None, "the process ends for no reason"
        words = str(cause) if str(cause) else type(cause).__name__
        still = "; ".join(f"{wait.owner} waits for {wait.what}" for wait in self._waits.open())
        _bounded(lambda: self.last_words(cause), _LAST_WORDS_S)
        _bounded(
            lambda: _tell(f"parity: {words} (ended without waiting for: {still or 'threads'})\n"),
            _LAST_WORDS_S,
        )
        self._leave(self._code)


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _bounded(work: Callable[[], None], timeout_s: float) -> bool:
    """Do something that may itself get stuck (a full pipe, a lock); whether it was done."""
    thread = threading.Thread(target=work, name="watchdog-words", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()
