"""How a run ends: in good order by a signal, and with a summary whatever happens.

Used by `launch.py` and `measure.py`. Every run ends in exactly one of finished, failed and
stopped, and says so in `summary.json`; "failed" can never look like "finished".
"""

import asyncio
import logging
import signal
from pathlib import Path

from parity.config import environment
from parity.errors import ParityError
from parity.folder import RunFolder
from parity.observe.dashboard.display import Display
from parity.observe.summary import Status, Summary
from parity.platforms.platform import Platform
from parity.run import Run
from parity.sft.fitting import Fitting

log = logging.getLogger(__name__)


class Ending:
    """Writes `summary.json`, however the run ends."""

    def __init__(self, folder: RunFolder, platform: Platform, *, is_resumed: bool = False) -> None:
        self._folder = folder
        self._is_resumed = is_resumed
        self._platform = platform
        self.run: Run | None = None  # set once the run is wired

    def success(self) -> Summary:
        """The run did what it was asked, or was stopped in good order."""
        run = self.run
        assert run is not None, "a run that was never wired can't succeed"
        is_stopped = run.is_stopping and run.trainer.step_index < run.config.steps
        return self._write("stopped", run.stop_reason) if is_stopped else self._write("finished")

    def failure(self, error: BaseException, *, has_begun: bool = False) -> None:
        """The run broke off; a second interrupt counts as stopped, anything else as failed.

        The command line tells an error, so here it goes to the log file only. `has_begun`: it was
        training (known here where `run` is set).
        """
        text = str(error) if isinstance(error, ParityError) else f"{type(error).__name__}: {error}"
        is_stop = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        if isinstance(error, ParityError):
            error.is_late = has_begun or self.run is not None
        level = logging.WARNING if is_stop else logging.INFO
        log.log(level, "event=run_broke_off reason=%s", "interrupted" if is_stop else text)
        log.info("event=traceback", exc_info=error)  # for the log file, not for the display
        if self.run is None and self._is_resumed:
            return  # the run never began again: what its folder says of it stays true
        try:
            self._write("stopped" if is_stop else "failed", "interrupted" if is_stop else text)
        except OSError as broken:
            log.error("event=summary_not_written reason=%s", broken)

    def _write(self, status: Status, reason: str | None = None) -> Summary:
        run = self.run
        if run is None:
            summary = Summary(status=status, reason=reason, platform=self._platform.name, steps=0)
        else:
            seconds = run.train_seconds
            summary = Summary(
                status=status,
                reason=reason,
                platform=self._platform.name,
                steps=run.trainer.step_index,
                train_seconds=seconds,
                seconds=run.timer.total().seconds,
                eval_first=run.progress.eval_first,
                eval_last=run.progress.eval_last,
                tokens_per_s=run.progress.moved_tokens / seconds if seconds > 0 else None,
            )
        summary.write(self._folder.path)
        return summary


class Stopper:
    """Turns SIGINT and SIGTERM into an end in good order.

    While a run is being wired, a signal breaks it off. While it trains, the first signal ends
    it after the step at hand, with a checkpoint; a second one breaks it off. A signal that
    comes while the result is being saved waits for that, once.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, display: Display) -> None:
        self.display = display
        self.work: Run | Fitting | None = None  # what trains, once it is wired
        self._task: asyncio.Task[int] | None = None

    def attach(self) -> None:
        """Take the signals over, for the task that calls this."""
        self._task = asyncio.current_task()
        for number in self.SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number.name)

    def detach(self) -> None:
        """Give the signals back."""
        for number in self.SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _stop(self, name: str) -> None:
        work = self.work
        assert self._task is not None, "a signal came before attach()"
        if work is None or work.is_stopping:
            self._task.cancel()
            return
        work.is_stopping = work.is_interrupted = True
        work.stop_reason = name
        self.display.message(f"{name}: ending after this step; once more breaks it off.")


def what_next(folder: RunFolder, summary: Summary) -> str:
    """Where everything lies, and the commands that follow."""
    searched = environment.runs_dir() or Path("runs")  # where commands look for a plain name
    is_found = folder.path.parent.resolve() == searched.resolve()
    run = folder.name if is_found else str(folder.path)
    if summary.status == "stopped":
        return f"{folder.path}: `parity resume {run}` goes on from step {summary.steps}"
    return (
        f"{folder.path}: `parity show {run}` draws the curves, "
        f"`parity eval {run}` evaluates, model/ is the trained model"
    )
