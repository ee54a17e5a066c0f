"""Work that may wait a moment: done while the event loop has nothing better to do.

A step's metrics are written while the next step computes instead of in front of it.
Invariants: things are done in order, each once, and an error of one is raised at the next call.
"""

import asyncio
from collections.abc import Callable

DELAY_S = 0.05  # by then the trainer or the engine is at work on the next step


class Later:
    """At most one thing that is still to be done."""

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Do `work` in a moment, and what came before it now at the latest."""
        self.now()
        self._work = work
        self._timer = asyncio.get_running_loop().call_later(DELAY_S, self._due)

    def now(self) -> None:
        """Do at once what is still to be done; raises what an earlier thing raised."""
        if self._timer is not None:
            self._timer.cancel()
        work, self._work, self._timer = self._work, None, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        if work is not None:
            work()

    def _due(self) -> None:
        try:
            self.now()
        except Exception as error:  # noqa: BLE001 kept for the caller: a timer has none
            self._error = error
