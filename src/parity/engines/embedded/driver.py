"""Drives a scheduler on the caller's event loop: who waits for whom.

who       does                                   waits for
submit    puts a request into the inbox          its future
driver    inbox -> scheduler, one step, futures  work; the step; who holds `stepping`
pause     stops the driver between two steps     `stepping`
exclusive runs a function between two steps      `stepping`

Steps are computed in one private thread with its own number of CPU threads. Requests that
are submitted by callbacks that are ready when a batch begins are all in it, so a program that
doesn't depend on time gives the same batches, and the same bits, every run. Whatever ends
the driving ends every request: none waits for ever.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from parity.engines.embedded.request import Finished, Request
from parity.engines.embedded.scheduler import Scheduler
from parity.errors import EngineError, EngineLostError
from parity.types import Completion

logger = logging.getLogger(__name__)

_QUIET_ROUNDS = 5  # rounds of the event loop without a new request before a batch begins


@dataclass(slots=True)
class _Attached:
    """What belongs to the event loop that the engine is driven on."""

    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    stepping: asyncio.Lock = field(default_factory=asyncio.Lock)


class Driver:
    """Requests in, completions out, with one scheduler between."""

    def __init__(self, scheduler: Scheduler, *, threads: int | None) -> None:
        """`threads` is the number of CPU threads of a step; None: torch's default."""
        self._scheduler = scheduler
        self._decoding = one_thread("parity-decode", threads)
        self._attached: _Attached | None = None
        self._inbox: list[Request] = []
        self._aborts: set[str] = set()
        self._pending: dict[str, asyncio.Future[Completion]] = {}
        self._num_submitted = 0
        self._max_concurrent = scheduler.max_concurrent
        self._is_paused = False
        self._refusal: str | None = None  # why nothing is served any more
        self._cause: BaseException | None = None

    @property
    def num_pending(self) -> int:
        """Requests that are running or waiting."""
        return len(self._pending)

    def check_served(self) -> None:
        """Raise EngineLostError where the engine was closed or has failed."""
        if self._refusal is not None:
            raise EngineLostError(self._refusal) from self._cause

    async def submit(self, request: Request) -> Completion:
        """The completion of a request; cancelling the call ends the request."""
        attached = self._attach()
        if request.request_id in self._pending:
            raise EngineError(
                f"request id {request.request_id!r} is in use; give each request its own."
            )
        future: asyncio.Future[Completion] = attached.loop.create_future()
        self._pending[request.request_id] = future
        self._inbox.append(request)
        self._num_submitted += 1
        self._wake(attached)
        try:
            return await future
        except asyncio.CancelledError:
            self._request_abort(attached, request.request_id)
            raise

    async def abort(self, request_id: str) -> None:
        """End a request with the tokens it has, if there is such a request."""
        attached = self._attach()
        future = self._pending.get(request_id)
        if future is not None:
            self._request_abort(attached, request_id)
            await asyncio.wait([future])

    async def pause(self) -> None:
        """Decode nothing from now on until `resume`; returns when the running step has ended."""
        attached = self._attach()
        self._is_paused = True
        self._scheduler.interrupt()
        async with attached.stepping:
            pass

    async def resume(self) -> None:
        """Go on decoding."""
        attached = self._attach()
        self._is_paused = False
        self._wake(attached)

    async def drain(self) -> None:
        """Wait until no request is running or waiting."""
        attached = self._attach()
        while self._pending:
            attached.idle.clear()
            await attached.idle.wait()

    async def exclusive(self, change: Callable[[], None]) -> None:
        """Run a function in the decoding thread between two tokens, as soon as possible."""
        attached = self._attach()
        self._scheduler.interrupt()
        async with attached.stepping:
            await attached.loop.run_in_executor(self._decoding, change)

    async def wake(self, change: Callable[[], None]) -> None:
        """Like `exclusive`, then look for work again, even if the call is cancelled meanwhile."""
        attached = self._attach()

        def look(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._wake(attached)

        async with attached.stepping:
            running = attached.loop.run_in_executor(self._decoding, change)
            running.add_done_callback(look)
            await asyncio.shield(running)

    async def close(self) -> None:
        """End every request with EngineLostError and end the thread."""
        if self._refusal is None:
            self._refusal = "the engine was closed; build a new one."
        self._scheduler.interrupt()
        attached = self._attached
        if attached is not None and attached.loop is asyncio.get_running_loop():
            async with attached.stepping:
                if attached.task is not None:
                    attached.task.cancel()
        self._refuse_pending()
        await asyncio.to_thread(self._decoding.shutdown)

    def _attach(self) -> _Attached:
        """What belongs to the running event loop; begins driving where nobody does.

        Raises EngineError where the engine was closed, failed, or is driven on another loop.
        """
        self.check_served()
        loop = asyncio.get_running_loop()
        attached = self._attached
        if attached is None or attached.loop is not loop:
            if attached is not None and not attached.loop.is_closed():
                raise EngineError(
                    "the engine is driven on another event loop that isn't closed; "
                    "use one event loop for all calls."
                )
            # A closed loop has left its requests behind; nobody waits for them any more.
            self._decoding.submit(self._scheduler.clear)
            self._forget_requests()
            attached = self._attached = _Attached(loop)
        if attached.task is None or attached.task.done():
            attached.task = loop.create_task(self._drive(attached), name="parity-engine")
            attached.task.add_done_callback(self._end_driving)
        return attached

    def _wake(self, attached: _Attached) -> None:
        self._scheduler.interrupt()
        attached.wake.set()

    def _request_abort(self, attached: _Attached, request_id: str) -> None:
        if request_id in self._pending:
            self._aborts.add(request_id)
            self._wake(attached)

    @property
    def _is_still(self) -> bool:
        """Whether nothing may be decoded now."""
        return self._is_paused or self._scheduler.is_asleep

    def _has_work(self) -> bool:
        if self._aborts:
            return True
        return not self._is_still and (bool(self._inbox) or self._scheduler.has_work)

    async def _drive(self, attached: _Attached) -> None:
        """Step while there is work; ends only by cancellation or failure."""
        is_settled = False
        while True:
            while not self._has_work():
                attached.wake.clear()
                is_settled = False
                await attached.wake.wait()
            if self._inbox or not is_settled:
                await self._settle()
            async with attached.stepping:
                finished = await self._step(attached.loop)
            self._resolve(attached, finished)
            is_settled = not finished

    async def _settle(self) -> None:
        """Let callbacks that are ready submit their requests, so that no batch depends on time."""
        quiet_rounds = 0
        while quiet_rounds < _QUIET_ROUNDS and len(self._inbox) < self._max_concurrent:
            before = self._num_submitted
            await asyncio.sleep(0)
            quiet_rounds = quiet_rounds + 1 if self._num_submitted == before else 0

    async def _step(self, loop: asyncio.AbstractEventLoop) -> list[Finished]:
        """One step of the scheduler in the decoding thread; only aborts while paused or asleep."""
        aborted, self._aborts = frozenset(self._aborts), set[str]()
        new, self._inbox = self._inbox, []
        if self._is_still:
            self._inbox = [request for request in new if request.request_id not in aborted]
            new = [request for request in new if request.request_id in aborted]
        decode = not self._is_still
        self._scheduler.interrupt(is_wanted=False)

        def compute() -> list[Finished]:
            with torch.inference_mode():
                return self._scheduler.step(new, aborted, decode=decode)

        return await loop.run_in_executor(self._decoding, compute)

    def _resolve(self, attached: _Attached, finished: Sequence[Finished]) -> None:
        """Hand results to who waits for them, in order."""
        for item in finished:
            self._aborts.discard(item.request.request_id)
            future = self._pending.pop(item.request.request_id)
            if not future.done():
                future.set_result(item.completion)
        if not self._pending:
            attached.idle.set()

    def _end_driving(self, task: asyncio.Task[None]) -> None:
        """A failed step ends the engine: what it left in the cache can't be trusted."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        logger.error("engine failed reason=%r", str(error), exc_info=error)
        self._refusal = f"the engine failed ({type(error).__name__}: {error}); build a new one."
        self._cause = error
        self._refuse_pending()

    def _refuse_pending(self) -> None:
        """End every request with the reason why nothing is served any more."""
        attached = self._attached
        if attached is not None and not attached.loop.is_closed():
            for future in self._pending.values():
                if not future.done():
                    refusal = EngineLostError(self._refusal)
                    refusal.__cause__ = self._cause
                    future.set_exception(refusal)
            attached.idle.set()
        self._forget_requests()

    def _forget_requests(self) -> None:
        self._pending.clear()
        self._inbox.clear()
        self._aborts.clear()


def one_thread(name: str, threads: int | None) -> ThreadPoolExecutor:
    """One thread whose tensor operations use `threads` CPU threads (None: torch's default)."""

    def set_threads() -> None:
        if threads is not None:
            torch.set_num_threads(threads)

    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=set_threads)
