"""How a new or recovered replica joins: never at another version than the pool's.

    forget what it had begun -> bring the current weights -> verify its version -> match pause
    -> admit, if nothing of this changed meanwhile; else once more

`bring` publishes the pool's weights to the replica (a transfer of its own); it isn't asked for
where the replica already serves the version. A replica waits with joining while a publication
is under way or the pool sleeps. Everything together ends within `join_timeout_s`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from parity.engines.config import RouterConfig
from parity.engines.engine import Engine
from parity.engines.pool.pool import Pool
from parity.engines.pool.replica import Replica
from parity.errors import EngineError

log = logging.getLogger(__name__)
T = TypeVar("T")
Bring = Callable[[str, Engine, int], Awaitable[None]]
"""Makes the engine of this name serve this version, or raises."""


class Joining:
    """Brings replicas into a pool."""

    def __init__(self, pool: Pool, config: RouterConfig, bring: Bring | None) -> None:
        self._pool = pool
        self._config = config
        self._bring = bring
        self._begun: dict[Replica, asyncio.Task[None]] = {}
        self._at_work: set[Replica] = set()  # who is being asked; the others wait

    @property
    def can_bring(self) -> bool:
        """Whether a replica of another version can be brought along."""
        return self._bring is not None

    def begin(self, replica: Replica, reason: str) -> None:
        """Join in the background; a refusal is an event of the pool."""
        task = asyncio.get_running_loop().create_task(self._quietly(replica, reason))
        self._begun[replica] = task
        task.add_done_callback(lambda _: self._begun.pop(replica, None))

    def drop(self, replica: Replica) -> None:
        """Break off the joining of a replica that was begun in the background."""
        task = self._begun.get(replica)
        if task is not None:
            task.cancel()

    def cancel(self) -> None:
        """Begin nothing more and break off what was begun."""
        for task in list(self._begun.values()):
            task.cancel()

    async def stand_still(self) -> None:
        """Wait until nobody is being asked; whoever waits has another end to its wait."""
        while self._at_work:
            await self._pool.changed()

    async def join(self, replica: Replica, reason: str) -> None:
        """Bring a replica in, or raise EngineError and leave it out."""
        pool = self._pool
        pool.absent.pop(replica.name, None)
        pool.joining[replica.name] = replica
        replica.state, replica.why = "joining", "it is joining"
        try:
            async with asyncio.timeout(self._config.join_timeout_s):
                while not await self._is_ready(replica):
                    await asyncio.sleep(0)
        except Exception as error:
            limit = f"it didn't join within {self._config.join_timeout_s:g} s"
            why = limit if isinstance(error, TimeoutError) and not str(error) else str(error)
            pool.refuse(replica, why)
            raise EngineError(f"replica {replica.name} can't join the pool: {why}") from error
        except asyncio.CancelledError:
            pool.refuse(replica, "its joining was broken off")
            raise
        pool.admit(replica, reason)

    async def _quietly(self, replica: Replica, reason: str) -> None:
        try:
            await self.join(replica, reason)
        except EngineError as error:
            log.debug("event=join_failed replica=%s reason=%s", replica.name, error)

    async def _is_ready(self, replica: Replica) -> bool:
        """Do what joining needs; whether the pool is still what it was for."""
        pool = self._pool
        if not pool.is_settled:
            await pool.changed()
            return False
        self._at_work.add(replica)
        try:
            return await self._does_match(replica)
        finally:
            self._at_work.discard(replica)
            pool.wake()

    async def _does_match(self, replica: Replica) -> bool:
        pool = self._pool
        if pool.joining.get(replica.name) is not replica:
            raise EngineError("it was removed while it was joining.")
        epoch, version, engine = pool.epoch, pool.version, replica.engine
        self._check_fit(engine)
        found = await self._asked(replica, "its health check", engine.check())
        await self._asked(replica, "abort_load", engine.abort_load("the engine joins the pool"))
        if found != version:
            await self._brought(replica, version, found)
            found = await self._asked(replica, "its health check", engine.check())
        if pool.is_paused:
            await self._asked(replica, "pause", engine.pause())
        else:
            await self._asked(replica, "resume", engine.resume())
        is_wanted = pool.joining.get(replica.name) is replica
        if not is_wanted or epoch != pool.epoch or not pool.is_settled:
            return False
        if found != version or engine.version != version:
            raise EngineError(
                f"it serves version {found} after version {version} was published to it, and the "
                "pool serves no other."
            )
        return True

    async def _brought(self, replica: Replica, version: int, found: int) -> None:
        if self._bring is None:
            raise EngineError(
                f"it serves version {found} and the pool version {version}; publish that to it "
                "first, or give the router a way to (`bring`)."
            )
        publication = _awaited(self._bring(replica.name, replica.engine, version))
        timeout_s = self._config.join_timeout_s
        await replica.ask(f"taking version {version}", publication, timeout_s=timeout_s)

    async def _asked(
        self, replica: Replica, what: str, question: Coroutine[object, object, T]
    ) -> T:
        return await replica.ask(what, question, timeout_s=self._config.call_timeout_s)

    def _check_fit(self, engine: Engine) -> None:
        """Refuse an engine that can't do what the pool promises."""
        pool = self._pool
        missing = pool.missing(engine.capabilities)
        if missing:
            raise EngineError(f"it can't do what the pool's engines can: {', '.join(missing)}.")
        if engine.max_length < pool.max_length:
            raise EngineError(
                f"it takes requests of {engine.max_length} tokens and the pool of "
                f"{pool.max_length}; start it with the same engine.max_length."
            )


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable
