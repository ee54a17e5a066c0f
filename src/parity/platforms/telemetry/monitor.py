"""Reads telemetry in a thread of its own, so that a sick device keeps nobody waiting.

A vendor library can block for minutes inside the driver. `latest` answers at once with what was
read last, or with why there is nothing fresh. Used by whoever shows or records device metrics.
Invariant: no caller ever waits for a device; what is older than `max_age_s` is never shown as
new.
"""

import logging
import threading
import time

from parity.platforms.telemetry.telemetry import Snapshot, Telemetry

log = logging.getLogger(__name__)
STOP_WAIT_S = 1.0


class Monitor:
    """Reads a source every `interval_s` seconds between `start` and `stop`."""

    def __init__(
        self, telemetry: Telemetry, *, interval_s: float = 5.0, max_age_s: float | None = None
    ) -> None:
        """`max_age_s`: a snapshot older than this is stale; three intervals where None."""
        self._telemetry = telemetry
        self._interval_s = interval_s
        self._max_age_s = 3 * interval_s if max_age_s is None else max_age_s
        self._stopped = threading.Event()
        self._started_at: float | None = None
        self._last: tuple[float, Snapshot] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read; the thread never keeps a process from ending."""
        assert self._thread is None, "a monitor is started once"
        self._started_at = time.monotonic()
        self._thread = threading.Thread(target=self._read, name="telemetry", daemon=True)
        self._thread.start()

    def latest(self) -> Snapshot:
        """The newest snapshot, at once; without readings, and with the reason, if it is stale."""
        last, source = self._last, self._telemetry.source
        begun = self._started_at if last is None else last[0]
        if begun is None:
            return Snapshot((), f"{source} isn't read yet")
        age_s = time.monotonic() - begun
        if age_s > self._max_age_s:
            return Snapshot((), f"{source} hasn't answered for {age_s:.0f} s")
        return Snapshot((), f"{source} hasn't answered yet") if last is None else last[1]

    def stop(self) -> bool:
        """Whether the thread ended; a reading that hangs in a driver is left behind."""
        self._stopped.set()
        if self._thread is None:
            return True
        self._thread.join(STOP_WAIT_S)
        return not self._thread.is_alive()

    def _read(self) -> None:
        while not self._stopped.is_set():
            snapshot = self._snapshot()
            self._last = (time.monotonic(), snapshot)
            self._stopped.wait(self._interval_s)
        try:
            self._telemetry.close()
        except Exception as error:  # noqa: BLE001 (a source of another package; see `_snapshot`)
            log.info("event=telemetry_unclosed error=%r", error)

    def _snapshot(self) -> Snapshot:
        try:
            return self._telemetry.read()
        except Exception as error:  # noqa: BLE001 (a source of another package may break its word)
            return Snapshot((), f"{self._telemetry.source} failed: {error!r}")
