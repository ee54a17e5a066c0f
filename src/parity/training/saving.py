"""A checkpoint that is written beside the training: at most one, and nothing of it is lost.

Used by `loop.py`. Invariants: the next one begins when this one has ended; what went wrong is
raised at the next `look` or `end`; nobody takes a checkpoint for saved before it is complete.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager


class Saving:
    """The write that is under way, if any; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._task: asyncio.Task[int] | None = None

    def begin(
        self, step: int, write: Callable[[], None], *, due: AbstractContextManager[object]
    ) -> None:
        """Run `write` in a thread of its own, within `due`; `end` the one before first."""
        assert self._task is None, "one checkpoint at a time"
        self._task = asyncio.create_task(self._run(step, write, due), name=f"saving step {step}")

    async def _run(
        self, step: int, write: Callable[[], None], due: AbstractContextManager[object]
    ) -> int:
        with due:
            await asyncio.to_thread(write)
        return step

    async def look(self) -> int | None:
        """The step whose checkpoint has become complete since; None: none. Doesn't wait.

        Raises what its write raised.
        """
        if self._task is None or not self._task.done():
            return None
        return await self.end()

    async def end(self) -> int | None:
        """Wait for the write that is under way; its step, None without one; raises as `look`."""
        if self._task is None:
            return None
        try:
            return await asyncio.shield(self._task)
        finally:
            if self._task.done():
                self._task = None

    async def leave(self, *, timeout_s: float) -> None:
        """Give the write some time to end where the run ends by an error, which is told instead."""
        if self._task is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(asyncio.shield(self._task), timeout_s)
