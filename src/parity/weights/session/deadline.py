"""The end of a wait, with what is needed to say what was waited for."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from parity.errors import DeadlineError, TransferError

T = TypeVar("T")
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


async def in_thread(work: Callable[[], T], cancelled: threading.Event) -> T:
    """Do `work` in another thread and be there until it has ended, also when cancelled.

    A thread can't be stopped: one that is left behind would use the sockets, the memory and the
    files of the publication after it. `cancelled` is set so that its waits end; the
    cancelling goes on when it has.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
            cancelled.set()
    if is_cancelled:
        task.exception()  # seen: the cancelling is what is reported
        raise asyncio.CancelledError
    return task.result()
