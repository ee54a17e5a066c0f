"""The end of a wait, with what is needed to say what was waited for."""

import threading
import time

from parity.errors import DeadlineError, TransferError

SLICE_S = 0.1  # how often a wait looks whether the other side is alive and anyone still waits


class Deadline:
    """One phase of a publication may last until then."""

    def __init__(
        self, phase: str, timeout_s: float, *, cancelled: threading.Event | None = None
    ) -> None:
        self.phase = phase
        self._timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s
        self._cancelled = cancelled

    @property
    def slice_s(self) -> float:
        """How long to wait before looking around again; 0 at the end."""
        return max(0.0, min(SLICE_S, self._end - time.monotonic()))

    def check(self, awaited: str) -> None:
        """Raise DeadlineError after the end, TransferError where the publication was cancelled."""
        if self._cancelled is not None and self._cancelled.is_set():
            raise TransferError(f"cancelled in phase {self.phase} while waiting for {awaited}.")
        if time.monotonic() >= self._end:
            raise DeadlineError(
                f"nothing came from {awaited} within {self._timeout_s:g} s in phase {self.phase}; "
                "see its log, or raise weights.timeout_s if it really takes so long."
            )
