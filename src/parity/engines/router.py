"""Several engines behind the contract of one.

Who calls it: the driver, from one event loop. The engines may be of this process or proxies of
other ones; a proxy raises EngineLostError, or any error of its own, when its engine is gone.

**Routing.** A request goes to the replica with the fewest requests in flight, then the fewest
tokens served; requests of one conversation or group stay together within a bound
(`pool/balance.py`). A request without a seed gets one here, so that its answer doesn't depend on
the replica.

**Failure.** RequestError is the request's own and goes to the caller. After any other error of
a try the replica is checked at once; one that doesn't answer leaves the pool (`pool/health.py`
names the other reasons). The request is begun again from its prompt on another replica, at most
`max_retries` times; what the lost try had sampled is lost. Every request ends exactly once: with
a completion, its own error, EngineError when its tries are used up, or EngineLostError with the
fate of each replica at once when nobody is left and nobody is joining.

Health checks begin with the first call, and answers come with the event loop's turns: whatever
blocks the loop blocks the router, but isn't held against a replica.

**Versions.** The pool has one version. Who serves another one isn't routed to and leaves.
While replicas exchange their weights (`commit_load`, `switch`) new requests wait, unfinished
ones go on. A call of the contract is put to all replicas: one that fails alone leaves the pool
and the call succeeds; where all fail the call fails and those that still answer stay. A version
is live when one replica serves it, and then the others leave. Replicas join as `pool/joining.py`
says.

    by a transport    inside `router.publication()`: transfer.publish(..., switch=...), whose
                      switch runs `router.switch(commit, version=v)`
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from parity.engines.config import RouterConfig
from parity.engines.engine import Engine, EngineCapabilities, EngineStats, SleepLevel
from parity.engines.pool.health import Health
from parity.engines.pool.joining import Bring, Joining
from parity.engines.pool.pool import Pool, PoolEvent
from parity.engines.pool.replica import Call, Replica
from parity.engines.pool.requests import Requests
from parity.engines.pool.together import Question, Together
from parity.errors import EngineError, EngineLostError
from parity.types import Completion, Sampling

if TYPE_CHECKING:
    import torch

    from parity.weights.manifest import Manifest

log = logging.getLogger(__name__)
_STAND_STILL_S = 5.0
_SEED_BITS = 2**63 - 1


class Router(Engine):
    """An engine made of engines."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        config: RouterConfig | None = None,
        *,
        bring: Bring | None = None,
        on_change: Callable[[PoolEvent], None] | None = None,
        seed: int = 0,
    ) -> None:
        """
        Args:
            engines: by name, all at one version; closed together with the router.
            config: None: the defaults.
            bring: publishes the pool's weights to one replica; None: a replica of another
                version can't join.
            on_change: told of every change of the pool, in the event loop; must not block.
            seed: from which requests without a seed get theirs.
        """
        self._config = config or RouterConfig()
        self._pool = Pool(engines, on_change=on_change)
        self._joining = Joining(self._pool, self._config, bring)
        self._health = Health(self._pool, self._joining, self._config)
        self._requests = Requests(self._pool, self._health, self._config)
        self._together = Together(self._pool, self._health, self._config)
        self._seed = seed
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def capabilities(self) -> EngineCapabilities:
        """What every replica can do."""
        return self._pool.capabilities

    @property
    def version(self) -> int:
        """The version of the pool."""
        return self._pool.version

    @property
    def max_length(self) -> int:
        """Of the replica that takes the least."""
        return self._pool.max_length

    @property
    def config(self) -> RouterConfig:
        """How it was set up."""
        return self._config

    @property
    def replicas(self) -> Mapping[str, str]:
        """By name: `serving`, or why it isn't."""
        return {one.name: one.why or "serving" for one in self._pool.replicas()}

    @property
    def events(self) -> tuple[PoolEvent, ...]:
        """The newest changes of the pool, oldest first."""
        return tuple(self._pool.events)

    def stats(self) -> EngineStats:
        """Sums over the replicas that there are or were; what waits here counts as waiting."""
        sums = self._pool.stats()
        return replace(sums, waiting=sums.waiting + self._requests.num_unrouted)

    def metrics(self) -> dict[str, float]:
        """The `router/` metrics; the spread is the largest one since the last call."""
        return {
            "router/replicas_alive": len(self._pool.serving),
            "router/departures": self._pool.num_departures,
            "router/joins": self._pool.num_joins,
            "router/retries": self._requests.num_retries,
            "router/in_flight_spread": self._requests.take_spread(),
        }

    async def add(self, name: str, engine: Engine, *, reason: str = "it was added") -> None:
        """Let a new or recovered replica join at the pool's version; returns when it serves.

        An absent replica of this name is forgotten (the caller closes its engine). Raises
        EngineError where it can't join; it is tried again while it answers its checks.
        """
        self._begin()
        if name in self.replicas and name not in self._pool.absent:
            raise EngineError(
                f"a replica named {name} is in the pool already; remove it first or use another "
                "name."
            )
        if name in self._pool.absent:
            self._forget(self._pool.absent[name])
        await self._joining.join(Replica(name, engine), reason)

    def remove(self, name: str, reason: str) -> None:
        """Take a replica out for good; its requests are begun again elsewhere.

        The caller closes its engine.
        """
        for one in self._pool.replicas():
            if one.name == name:
                self._pool.leave(one, reason)
                self._forget(one)

    def lose(self, name: str, reason: str) -> None:
        """Let a replica leave that its owner knows to be gone; `add` may bring its successor."""
        for one in self._pool.replicas():
            if one.name == name:
                self._pool.leave(one, reason)

    def _forget(self, replica: Replica) -> None:
        self._pool.forget(replica)
        self._joining.drop(replica)

    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        """Sample one completion of `tokens`, on whichever replica.

        Raises RequestError where no engine can serve it, EngineError where every try failed,
        EngineLostError where no replica is left.
        """
        self._begin()
        number = next(self._numbers)
        if sampling.seed is None:
            sampling = replace(sampling, seed=_seed_of(self._seed, number))
        name = f"routed-{number}" if request_id is None else request_id
        return await self._requests.serve(Call(name, tokens, sampling))

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort` and the tokens it has; else do nothing."""
        self._begin()
        await self._requests.abort(request_id)

    async def check(self) -> int:
        """The pool's version; raises EngineLostError where no replica is left."""
        self._begin()
        if not (self._pool.serving or self._pool.joining):
            raise self._pool.nobody() from self._pool.cause
        return self._pool.version

    async def pause(self) -> None:
        """Pause every replica; returns when all have stopped."""
        await self._as("is_paused", value=True, what="pause", question=lambda one: one.pause())

    async def resume(self) -> None:
        """Resume every replica."""
        await self._as("is_paused", value=False, what="resume", question=lambda one: one.resume())

    async def sleep(self, level: SleepLevel = 1) -> None:
        """Let every replica sleep; nobody joins meanwhile."""
        if not self.capabilities.can_sleep:
            await super().sleep(level)
        await self._as("is_asleep", value=True, what="sleep", question=lambda one: one.sleep(level))

    async def wake(self) -> None:
        """Wake every replica."""
        if not self.capabilities.can_sleep:
            await super().wake()
        await self._as("is_asleep", value=False, what="wake", question=lambda one: one.wake())

    async def _as(
        self,
        state: Literal["is_paused", "is_asleep"],
        *,
        value: bool,
        what: str,
        question: Question,
    ) -> None:
        """Bring the replicas into a state, which those that join later are brought into too.

        Where nobody is left the wish holds for who joins; where everyone refuses it is dropped.
        """
        self._begin()
        pool = self._pool
        before = pool.is_paused, pool.is_asleep
        setattr(pool, state, value)
        pool.touch()
        try:
            await self._together.ask(what, question)
        except BaseException as error:
            is_nobody_left = isinstance(error, EngineLostError) and not pool.serving
            if is_nobody_left and pool.joining:
                return
            if not is_nobody_left:
                pool.is_paused, pool.is_asleep = before
                pool.touch()
            raise

    async def drain(self) -> None:
        """Wait until no request is running or waiting, here or at a replica."""
        self._begin()
        await self._requests.ended()
        if self._pool.serving:
            await self._together.ask("drain", lambda one: one.drain(), has_limit=False)

    async def begin_load(self, manifest: "Manifest") -> None:
        """Begin a publication to every replica."""
        self._begin()
        await self._together.begin_load(manifest)

    async def load(self, tensors: "Iterable[tuple[str, torch.Tensor]]") -> None:
        """Take the next tensors into every replica."""
        self._begin()
        await self._together.load(tensors)

    async def commit_load(self, version: int) -> None:
        """Serve the new weights; a replica that can't leaves the pool."""

        async def commit() -> None:
            await self._together.ask("commit_load", lambda one: one.commit_load(version))

        await self.switch(commit, version=version)

    @asynccontextmanager
    async def publication(self) -> AsyncGenerator[None]:
        """For as long as a transport publishes: nobody joins, and so nobody's load is aborted.

        Begins when the joinings at work have ended their step, or after a few seconds.
        """
        self._begin()
        pool = self._pool
        pool.is_loading = True
        pool.touch()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STAND_STILL_S):
                    await self._joining.stand_still()
            yield
        finally:
            pool.is_loading = False
            pool.touch()

    async def switch(self, commit: Callable[[], Awaitable[None]], *, version: int) -> None:
        """Run the commit of a transport that brought `version` to the replicas; see `together`.

        Raises what `commit` raises where no replica serves the version afterwards.
        """
        self._begin()
        await self._together.switch(commit, version=version)

    async def abort_load(self, reason: str) -> None:
        """Forget what `load` took, everywhere; the old version stays."""
        self._begin()
        await self._together.abort_load(reason)

    async def close(self) -> None:
        """End every request with EngineLostError and close every engine."""
        if self._watching is not None and self._loop is asyncio.get_running_loop():
            self._watching.cancel()
        self._joining.cancel()
        self._requests.refuse("the engine was closed; build a new one.")
        limit_s = self._config.call_timeout_s
        replicas = self._pool.replicas()
        closed = await asyncio.gather(
            *(one.ask("close", one.engine.close(), timeout_s=limit_s) for one in replicas),
            return_exceptions=True,
        )
        for one, error in zip(replicas, closed, strict=True):
            if isinstance(error, BaseException):
                log.warning("event=close_failed replica=%s reason=%r", one.name, str(error))

    def _begin(self) -> None:
        """Refuse after `close`; watch over the replicas in the event loop that is running."""
        self._requests.check_open()
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise EngineError(
                "the router is used on another event loop that isn't closed; use one event loop "
                "for all calls."
            )
        if self._loop is not None:  # nobody waits any more for what a closed loop left behind
            self._requests.calls.clear()
            self._pool.attach()
        self._loop = loop
        self._watching = loop.create_task(self._health.watch(), name="parity-router")
        self._watching.add_done_callback(self._end_watching)

    def _end_watching(self, task: asyncio.Task[None]) -> None:
        """Without health checks a request could wait for ever: serve nothing any more."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("event=router_failed reason=%r", str(error), exc_info=error)
            self._requests.refuse(
                f"the router's health checks broke ({type(error).__name__}: {error}); this is a "
                "mistake of Parity's, please report it."
            )


def _seed_of(seed: int, number: int) -> int:
    """The seed of an unseeded request, a function of the router's seed and its number."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _SEED_BITS
