"""Engine replicas as actors, and the driver's view of one as an engine.

    driver (event loop)                             replica (a process)
    generate x many, one turn  -- submit(batch) ->  engine.generate, side by side
    completions as they end    <- take() ---------  all that ended since the last one, counters

Requests of one turn of the event loop travel in one call, and answers come back in batches, so
that thousands of episodes per second cost the driver little. What an engine in this process would
have decoded in one batch is in one batch there too: the same numbers. `take` waits at the replica,
so the driver learns of an end at once, and of a death from the broken call.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import TYPE_CHECKING, TypeVar

from ray.exceptions import RayActorError, RayError

from parity.engines.engine import Engine, EngineCapabilities, EngineStats, SleepLevel
from parity.errors import EngineError, EngineLostError, ParityError
from parity.runtime.ray.calls import cause_of, short
from parity.runtime.ray.publication import Way
from parity.runtime.ray.replica import Asked, EngineFacts, Taken
from parity.runtime.ray.role import Actor, tell
from parity.types import Completion, Sampling

if TYPE_CHECKING:
    import torch

    from parity.weights.manifest import Manifest

log = logging.getLogger(__name__)
_QUIET_ROUNDS = 5  # rounds of the event loop without a new request before a batch is sent
Result = TypeVar("Result")


class RemoteEngine(Engine):
    """One replica; used from one event loop."""

    def __init__(self, name: str, replica: Actor, facts: EngineFacts) -> None:
        """`facts` are what the replica's `open` returned."""
        self.name = name
        self._replica = replica
        self._facts = facts
        self._version = facts.version
        self._stats = EngineStats()
        self._numbers = itertools.count()
        self._outbox: list[Asked] = []
        self._pending: dict[str, asyncio.Future[Completion]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._num_asked = 0
        self._lost: str | None = None  # why nothing is served any more
        self._is_closed = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """As the replica says."""
        return self._facts.capabilities

    @property
    def version(self) -> int:
        """As the replica said last."""
        return self._version

    @property
    def max_length(self) -> int:
        """Prompt plus answer tokens that one request may have."""
        return self._facts.max_length

    @property
    def is_lost(self) -> bool:
        """Whether its process is gone, or it was closed."""
        return self._lost is not None

    @property
    def is_closed(self) -> bool:
        """Whether its owner closed it."""
        return self._is_closed

    def stats(self) -> EngineStats:
        """As the replica said last, half a second ago at most while it answers."""
        return self._stats

    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        """Sample one completion of `tokens`; cancelling the call ends the request.

        Raises what the replica's engine raises, EngineLostError where its process is gone.
        """
        self._check()
        name = f"{self.name}-{next(self._numbers)}" if request_id is None else request_id
        if name in self._pending:
            raise EngineError(f"request id {name!r} is in use; give each request its own.")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._pending[name] = future
        self._outbox.append((name, tokens, sampling))
        self._num_asked += 1
        if self._sending is None or self._sending.done():
            self._sending = self._keep(self._send())
        if self._taking is None or self._taking.done():
            self._taking = self._keep(self._take())
        try:
            return await future
        except asyncio.CancelledError:
            if self._lost is None:
                self._keep(self._quietly(self.abort(name)))
            raise
        finally:
            self._pending.pop(name, None)

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort` and the tokens it has; else do nothing."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending])  # never before the request itself
        await self._call(self._replica.abort.remote(request_id))

    async def check(self) -> int:
        """The version that the replica serves, asked of itself."""
        self._version = await self._call(self._replica.check.remote())
        return self._version

    async def pause(self) -> None:
        """Stop between two tokens; requests keep their state."""
        await self._call(self._replica.pause.remote())

    async def resume(self) -> None:
        """Go on decoding."""
        await self._call(self._replica.resume.remote())

    async def sleep(self, level: SleepLevel = 1) -> None:
        """Give up memory until `wake`."""
        await self._call(self._replica.sleep.remote(level))

    async def wake(self) -> None:
        """Take the memory again and go on."""
        await self._call(self._replica.wake.remote())

    async def held_bytes(self) -> int:
        """Memory that the replica's process holds on its device."""
        return await self._call(self._replica.held_bytes.remote())

    async def drain(self) -> None:
        """Wait until no request is running or waiting."""
        while self._pending:
            await asyncio.wait(list(self._pending.values()))
        await self._call(self._replica.drain.remote())

    async def join(self, way: Way) -> None:
        """Be in the process group of the next publications, made together with its others."""
        await self._call(self._replica.join.remote(way))

    async def begin_load(self, manifest: "Manifest") -> None:
        """Begin a publication through the driver; transports go past it, to the replica."""
        await self._call(self._replica.begin_load.remote(manifest))

    async def load(self, tensors: "Iterable[tuple[str, torch.Tensor]]") -> None:
        """Take tensors, through the driver."""
        await self._call(self._replica.load.remote([(n, t.detach().cpu()) for n, t in tensors]))

    async def commit_load(self, version: int) -> None:
        """Serve what was loaded."""
        await self._call(self._replica.commit_load.remote(version))
        self._version = version

    async def abort_load(self, reason: str) -> None:
        """Forget what was loaded."""
        await self._call(self._replica.abort_load.remote(reason))

    async def close(self) -> None:
        """End every request with EngineLostError; the replica frees its memory, if it lives."""
        self._is_closed = True
        if self._lost is None:
            self._end("the engine was closed; build a new one.")
            with contextlib.suppress(RayError, ParityError):
                await _answer(self._replica.close.remote())
        for task in list(self._tasks):
            task.cancel()

    async def _send(self) -> None:
        """Gather what callbacks that are ready now ask for, and send it as one batch."""
        while self._outbox:
            quiet_rounds = 0
            while quiet_rounds < _QUIET_ROUNDS:
                before = self._num_asked
                await asyncio.sleep(0)
                quiet_rounds = quiet_rounds + 1 if self._num_asked == before else 0
            batch, self._outbox = self._outbox, []
            try:
                await _answer(self._replica.submit.remote(batch))
            except RayError as error:
                self._broken(error)
                return

    async def _take(self) -> None:
        """Hand out what ended, until the replica is gone."""
        while self._lost is None:
            try:
                taken: Taken = await _answer(self._replica.take.remote())
            except RayError as error:
                self._broken(error)
                return
            self._stats, self._version = taken.stats, taken.version
            tell(self.name, taken.told)
            for name, outcome in taken.ended:
                future = self._pending.pop(name, None)
                if future is None or future.done():
                    continue  # its caller was cancelled
                if isinstance(outcome, Completion):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)

    async def _call(self, ref: Awaitable[Result]) -> Result:
        """The answer to a call; a replica that is gone is known from now on."""
        self._check()
        try:
            return await ref
        except RayActorError as error:
            self._broken(error)
            raise EngineLostError(self._lost) from error
        except RayError as error:
            cause = cause_of(error)
            if isinstance(cause, ParityError):
                raise cause from None
            raise EngineError(f"{self.name} failed ({short(error)}).") from error

    def _check(self) -> None:
        if self._lost is not None:
            raise EngineLostError(self._lost)

    def _broken(self, error: RayError) -> None:
        if self._lost is None:
            log.warning("event=engine_lost name=%s reason=%s", self.name, short(error))
            self._end(f"{self.name} is gone ({short(error)}); see its log.")

    def _end(self, reason: str) -> None:
        self._lost = reason
        self._outbox.clear()
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(EngineLostError(reason))

    def _keep(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, work: Awaitable[None]) -> None:
        with contextlib.suppress(ParityError):  # its caller was cancelled and won't hear
            await work


async def _answer(ref: Awaitable[Result]) -> Result:
    """What a call of an actor comes to."""
    return await ref
