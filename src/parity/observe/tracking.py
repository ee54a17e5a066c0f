"""All trackers of a run behind one object; the loop logs here and nowhere else.

Invariants: a tracker that raises costs nothing but its own rows, and says so at most once a
minute; a tracker whose package is missing ends the run at `start`, before any work is done;
trackers see finite floats or None (a NaN or infinity is told once per name, then None);
`finish` returns within its deadline even if a tracker doesn't.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import SupportsFloat, cast

from parity.errors import ConfigError, UnsupportedError
from parity.observe.names import find
from parity.observe.trackers import TRACKERS
from parity.observe.trackers.tracker import Tracker
from parity.types import Json

QUIET_S = 60.0  # between two warnings of one tracker, and between two tries to start it
_logger = logging.getLogger(__name__)


class Trackers:
    """Fans metrics out to trackers and keeps their failures from the run."""

    def __init__(
        self, trackers: Mapping[str, Tracker], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`trackers` by the name that warnings use; `of` builds them from config names."""
        self._guards = [_Guard(name, tracker, clock) for name, tracker in trackers.items()]
        self._config: Mapping[str, Json] = {}
        self._told: set[str] = set()

    @classmethod
    def of(cls, names: Sequence[str], *, run_dir: Path, project: str, run_name: str) -> "Trackers":
        """The trackers that `trackers.names` lists; ConfigError for an unknown one."""
        built: dict[str, Tracker] = {}
        for name in names:
            kind = TRACKERS.load(name)
            if not (isinstance(kind, type) and issubclass(kind, Tracker)):
                raise ConfigError(
                    f"trackers.names has {name}, which isn't a Tracker class; register a subclass"
                    " of parity.observe.trackers.tracker.Tracker."
                )
            built[name] = kind(run_dir, project, run_name)
        return cls(built)

    def start(self, config: Mapping[str, Json]) -> None:
        """Start every tracker; one that can't reach its server is tried again later.

        Raises UnsupportedError where a package is missing.
        """
        self._config = config
        try:
            for guard in self._guards:
                guard.start(config, lets_through=(UnsupportedError,))
        except UnsupportedError:
            self.finish()
            raise

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Give the metrics of one step to every tracker."""
        clean = {name: self._clean(name, value, step) for name, value in metrics.items()}
        for guard in self._guards:
            if guard.is_started or guard.start_again(self._config):
                guard.call("log", lambda tracker: tracker.log(step, clean))

    def finish(self, *, timeout_s: float = 60.0) -> None:
        """Flush and close every tracker, all of them within `timeout_s`."""
        threads = [
            (guard, threading.Thread(target=guard.finish, name=f"{guard.name}-finish", daemon=True))
            for guard in self._guards
            if guard.is_started
        ]
        for _, thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout_s
        for guard, thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _logger.warning(
                    "event=tracker_unfinished tracker=%s waited_s=%s", guard.name, timeout_s
                )

    def _clean(self, name: str, value: float | None, step: int) -> float | None:
        """A finite native float, or None; odd names and values are told once per name."""
        if find(name) is None and name not in self._told:
            self._told.add(name)
            _logger.warning("event=undeclared_metric name=%s step=%s", name, step)
        if value is None:
            return None
        try:
            number = float(cast("SupportsFloat", value))  # numpy and torch scalars too
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            number = math.nan
            self._tell_once(name, f"{type(error).__name__}", step)
        if math.isfinite(number):
            return number
        self._tell_once(name, str(number), step)
        return None

    def _tell_once(self, name: str, found: str, step: int) -> None:
        key = f"{name} value"
        if key not in self._told:
            self._told.add(key)
            _logger.warning("event=unknown_metric name=%s value=%s step=%s", name, found, step)


class _Guard:
    """One tracker, and what it did wrong since the last warning."""

    def __init__(self, name: str, tracker: Tracker, clock: Callable[[], float]) -> None:
        self.name = name
        self.is_started = False
        self._tracker = tracker
        self._clock = clock
        self._num_untold = 0
        self._told_at: float | None = None
        self._tried_at = clock()

    def start(
        self, config: Mapping[str, Json], *, lets_through: tuple[type[Exception], ...] = ()
    ) -> None:
        self._tried_at = self._clock()
        self.is_started = self.call(
            "start", lambda tracker: tracker.start(config), lets_through=lets_through
        )

    def start_again(self, config: Mapping[str, Json]) -> bool:
        """Try a failed start once more, at most once in `QUIET_S`; True if it stands now."""
        if self._clock() - self._tried_at >= QUIET_S:
            self.start(config)
        return self.is_started

    def finish(self) -> None:
        self.call("finish", lambda tracker: tracker.finish())

    def call(
        self,
        action: str,
        call: Callable[[Tracker], None],
        *,
        lets_through: tuple[type[Exception], ...] = (),
    ) -> bool:
        """Do `call`; False if it failed, with a warning at most once in `QUIET_S`."""
        try:
            call(self._tracker)
        except lets_through:
            raise
        except Exception as error:  # noqa: BLE001 - a tracker may fail without harm to the run
            self._num_untold += 1
            now = self._clock()
            if self._told_at is None or now - self._told_at >= QUIET_S:
                _logger.warning(
                    "event=tracker_failed tracker=%s action=%s failures=%s error=%s: %s",
                    self.name,
                    action,
                    self._num_untold,
                    type(error).__name__,
                    _text_of(error),
                )
                self._told_at, self._num_untold = now, 0
            return False
        return True


def _text_of(error: Exception) -> str:
    """The message of an error, even if it can't tell one."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a tracker's own error class may be broken
        return "(no message)"
