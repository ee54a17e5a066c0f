"""One engine of a pool, the requests on it, and a way to ask it that always ends.

Used by the router and its parts, all in one event loop. Invariant: nothing here waits for an
engine without an end. What is asked of it runs in a task of its own, so that an engine which
neither answers nor lets itself be cancelled is left behind, not waited for.
"""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from parity.engines.engine import Engine, EngineStats
from parity.errors import DeadlineError, EngineError
from parity.types import Completion, Sampling

log = logging.getLogger(__name__)
T = TypeVar("T")
State = Literal["joining", "serving", "left"]
_LATE_ROUNDS = 3  # waits that are begun again because the event loop itself stood still


@dataclass(eq=False, slots=True)
class Call:
    """One request of the router's caller, whichever replica it is on."""

    request_id: str
    tokens: tuple[int, ...]
    sampling: Sampling
    tries: "list[tuple[Replica, str]]" = field(default_factory=list)  # lost ones, and why
    cause: BaseException | None = None  # that the last failed try raised
    replica: "Replica | None" = None  # None: it waits for one
    outcome: "asyncio.Future[Completion | None] | None" = None  # None as result: the try is lost
    is_aborted: bool = False

    @property
    def engine_id(self) -> str:
        """Its id at the engine: a try never meets what is left there of an earlier one."""
        return f"{self.request_id}~{len(self.tries)}" if self.tries else self.request_id


class Replica:
    """An engine with a name; in the pool while `state` is serving."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        self.state: State = "joining"
        self.why = "it hasn't joined yet"  # it isn't serving
        self.calls: set[Call] = set()
        self.tokens_served = 0  # prompt and answer tokens of the requests that it completed
        self.num_departures = 0
        self.num_failed = 0  # requests whose try it failed at, while it is asked what that means
        self._stats = EngineStats(decoded_rows=0)
        self._left: asyncio.Future[None] | None = None
        self._abandoned: set[asyncio.Task[object]] = set()

    @property
    def in_flight(self) -> int:
        """Requests that were given to it and haven't ended."""
        return len(self.calls)

    def enter(self) -> None:
        """It serves from now on."""
        self.state, self.why, self.tokens_served = "serving", "", 0
        self._left = None

    def leave(self, why: str) -> int:
        """It serves no more: who asks it stops waiting; the number of tries that are lost."""
        self._stats = self.stats()
        self.state, self.why = "left", why
        self.num_departures += 1
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
        lost = [c for c in self.calls if c.outcome is not None and not c.outcome.done()]
        for call in lost:
            assert call.outcome is not None
            call.outcome.set_result(None)
        self.calls.clear()
        return len(lost) + self.num_failed

    def forget(self) -> None:
        """Drop what belongs to an event loop that was closed."""
        self.calls.clear()
        self._abandoned.clear()
        self._left = None

    def stats(self) -> EngineStats:
        """The engine's counters; those it had when it left are kept."""
        if self.state == "serving":
            try:
                self._stats = self.engine.stats()
            except Exception as error:  # noqa: BLE001 (the health check judges an engine)
                log.debug("event=no_stats replica=%s reason=%s", self.name, error)
            return self._stats
        return replace(self._stats, running=0, waiting=0, is_asleep=False)

    async def ask(
        self, what: str, question: Coroutine[object, object, T], *, timeout_s: float | None
    ) -> T:
        """The engine's answer, within `timeout_s` where that is set.

        Raises what the engine raises, DeadlineError where it is late, EngineError where the
        replica left the pool meanwhile. Time in which this event loop stood still isn't the
        engine's and begins the wait anew, at most three times.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(question, name=f"{self.name}: {what}")
        waits: list[asyncio.Future[T] | asyncio.Future[None]] = [task]
        if self.state == "serving":
            self._left = self._left or loop.create_future()
            waits.append(self._left)
        try:
            for _ in range(_LATE_ROUNDS):
                began = loop.time()
                done, _ = await asyncio.wait(
                    waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if done or timeout_s is None or loop.time() - began < 1.5 * timeout_s:
                    break
        finally:
            self.abandon(task)
        if task.done():
            if task.cancelled():
                raise EngineError(f"replica {self.name} broke off {what}.")
            return task.result()
        if len(waits) > 1 and waits[1].done():
            raise EngineError(f"replica {self.name} left the pool before it ended {what}.")
        raise DeadlineError(f"replica {self.name} didn't end {what} within {timeout_s:g} s.")

    def abandon(self, task: "asyncio.Task[T]") -> None:
        """End a task that nobody waits for any more; its error is nobody's either."""
        if not task.done():
            task.cancel()
            self._abandoned.add(task)  # the event loop itself keeps no task alive
            task.add_done_callback(self._abandoned.discard)
        task.add_done_callback(_read)


def _read(task: "asyncio.Task[T]") -> None:
    if not task.cancelled():
        task.exception()
