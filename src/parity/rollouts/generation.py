"""Requests to the engine, and what a publication does to those that are unfinished.

Every training episode asks for tokens through `Generation`, so that one place knows which
requests are active. A publication goes through `switch`: `finish` lets them end first,
`continue` leaves them running (their later tokens are of the new version), `restart` ends
them and begins them again on the new weights.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

from parity.engines.engine import Engine
from parity.rollouts.config import InFlight
from parity.types import Completion, Sampling


class Generation:
    """The one way from episodes to the engine."""

    def __init__(self, engine: Engine, *, in_flight: InFlight) -> None:
        self.engine = engine
        self._in_flight: InFlight = in_flight
        self._active: set[str] = set()
        self._restarted: set[str] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._numbers = itertools.count()

    async def generate(self, tokens: tuple[int, ...], sampling: Sampling) -> Completion:
        """One completion; begins again where a publication with `restart` came between."""
        while True:
            await self._open.wait()
            request_id = f"request-{next(self._numbers)}"
            self._active.add(request_id)
            self._idle.clear()
            try:
                completion = await self.engine.generate(tokens, sampling, request_id=request_id)
            finally:
                self._active.discard(request_id)
                if not self._active:
                    self._idle.set()
            if request_id not in self._restarted:
                return completion
            self._restarted.discard(request_id)
            if completion.finish_reason != "abort":
                return completion

    async def switch(self, commit: Callable[[], Awaitable[None]]) -> None:
        """Run `commit`, which makes the new version live, as `in_flight` says."""
        if self._in_flight == "continue":
            await commit()
            return
        self._open.clear()
        try:
            if self._in_flight == "restart":
                self._restarted |= self._active
                for request_id in sorted(self._active):
                    await self.engine.abort(request_id)
            await self._idle.wait()
            await commit()
        finally:
            self._restarted.clear()
            self._open.set()
