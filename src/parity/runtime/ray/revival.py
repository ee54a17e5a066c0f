"""Engine replicas that come back: one that is lost is started again in its place.

    who       does                                                  waits for
    watch     looks at every replica that doesn't serve             a second between two rounds
    restart   starts a process, which loads the model; tries again  a pause that doubles each time;
              while restarts are left                               `placement.start_timeout_s`
    joining   the router verifies the version and lets it in        its `join_timeout_s`

A replica that is up and not in the pool is a *newcomer*: the next publication includes it
(`transfer.py`), whose commit brings it to the pool's version; over `disk` it fetches the live
version by itself. Only then it joins. A process that is there but has answered nothing for
`placement.router.stall_timeout_s` since it left the pool is ended and started again.

Used by `build.py`, in the driver's event loop. Invariants: a replica has one restart at a time;
at most `restarts` of them in one process of the run; nothing here ends the run or delays it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol

import ray

from parity.engines.pool.replica import Replica
from parity.engines.router import Router
from parity.errors import EngineError
from parity.runtime.placement import Seat
from parity.runtime.ray.calls import Calls
from parity.runtime.ray.engine import RemoteEngine
from parity.runtime.ray.publication import Way
from parity.runtime.ray.role import Actor
from parity.runtime.ray.setting import Setting

log = logging.getLogger(__name__)
_LOOK_S = 1.0
_FIRST_PAUSE_S = 1.0
_MOST_DOUBLINGS = 6


class Places(Protocol):
    """Where replicas run."""

    async def start(self, number: int) -> RemoteEngine:
        """A new process in the place of this replica, with its model loaded."""
        ...

    def end(self, number: int) -> None:
        """End the process that is there, if one is; returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterPlaces:
    """The seats of a run in its cluster."""

    seats: tuple[Seat, ...]  # of the engines, by number
    actors: dict[str, Actor]  # of the run, by name; whoever is started takes its place there
    start_actor: Callable[[Seat], Awaitable[Actor]]
    setting: Setting
    calls: Calls
    way: Way
    version: int  # what a new engine says it serves: lower than any that is published

    async def start(self, number: int) -> RemoteEngine:
        """An actor on the same seat; one that can't be opened is ended again."""
        seat = self.seats[number]
        actor = await self.start_actor(seat)
        try:
            opening = actor.open.remote(self.setting.opener, self.way, number, self.version)
            limit_s = self.setting.config.placement.start_timeout_s
            facts = await self.calls.gather(
                {seat.name: opening}, "load the model", deadline_s=limit_s
            )
        except BaseException:
            ray.kill(actor)
            raise
        self.actors[seat.name] = actor
        return RemoteEngine(seat.name, actor, facts[seat.name])

    def end(self, number: int) -> None:
        """Kill the actor."""
        ray.kill(self.actors[self.seats[number].name])


@dataclass(eq=False, slots=True)
class _Fate:
    """What is known of one replica."""

    replica: Replica  # asks the newest engine, and ends each wait for it
    num_restarts: int = 0
    is_new: bool = False  # started again, and the router doesn't know it yet
    is_up: bool = False  # it answered its last check, out of the pool
    is_given_up: bool = False
    silent_since: float | None = None
    task: asyncio.Task[None] | None = None  # a restart or a joining

    @property
    def is_busy(self) -> bool:
        """Whether it is being started, or joins."""
        return self.task is not None and not self.task.done()


class Revival:
    """Watches over the replicas of a router."""

    def __init__(
        self, engines: list[RemoteEngine], router: Router, places: Places, *, restarts: int
    ) -> None:
        """
        Args:
            engines: the replicas by number; one that was started again takes its place here.
            router: which they are used through.
            places: starts and ends their processes.
            restarts: of each replica, at most.
        """
        self._engines = engines
        self._router = router
        self._places = places
        self._restarts = restarts
        self._fates = [_Fate(Replica(one.name, one)) for one in engines]
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Watch, in the event loop that is running, until `close`."""
        self._watching = asyncio.create_task(self._watch(), name="parity-revival")
        self._watching.add_done_callback(_tell_end)

    def newcomers(self) -> tuple[int, ...]:
        """The replicas that are up and wait for a publication that brings them along."""
        return tuple(
            number
            for number, fate in enumerate(self._fates)
            if fate.is_up and not self._engines[number].is_lost and not self._serves(number)
        )

    async def close(self) -> None:
        """Begin nothing more, and break off what was begun."""
        tasks = [self._watching, *(fate.task for fate in self._fates)]
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        limit_s = self._router.config.call_timeout_s
        unknown = [fate.replica for fate in self._fates if fate.is_new]
        closing = (one.ask("close", one.engine.close(), timeout_s=limit_s) for one in unknown)
        await asyncio.gather(*closing, return_exceptions=True)

    def _serves(self, number: int) -> bool:
        name = self._engines[number].name
        return not self._fates[number].is_new and self._router.replicas.get(name) == "serving"

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.gather(*map(self._look, range(len(self._engines))))

    async def _look(self, number: int) -> None:
        """See how a replica is, and begin what it needs."""
        engine, fate = self._engines[number], self._fates[number]
        if fate.is_busy or engine.is_closed:
            return
        if engine.is_lost:
            self._begin_restart(number, "its process is gone")
            return
        if self._serves(number):
            fate.is_up, fate.silent_since = False, None
            return
        config = self._router.config
        now = asyncio.get_running_loop().time()
        try:
            version = await fate.replica.ask(
                "its check", engine.check(), timeout_s=config.check_timeout_s
            )
        except Exception as error:  # noqa: BLE001 (whatever a proxy raises, it doesn't answer)
            fate.is_up = False
            if fate.silent_since is None:
                fate.silent_since = now
            silent_s = asyncio.get_running_loop().time() - fate.silent_since
            if silent_s >= config.stall_timeout_s and not engine.is_lost and self._may(number):
                self._places.end(number)
                self._begin_restart(number, f"it answered nothing for {silent_s:.0f} s ({error})")
            return
        fate.is_up, fate.silent_since = True, None
        if fate.is_new and version == self._router.version:
            self._begin(number, self._join(number))

    def _may(self, number: int) -> bool:
        """Whether a restart is left; the first refusal is told."""
        fate = self._fates[number]
        if fate.num_restarts < self._restarts:
            return True
        if not fate.is_given_up:
            fate.is_given_up = True
            log.warning(
                "event=engine_given_up engine=%s restarts=%d; the run goes on without it, see its "
                "log and placement.engine_restarts",
                *(self._engines[number].name, fate.num_restarts),
            )
        return False

    def _begin_restart(self, number: int, reason: str) -> None:
        engine, fate = self._engines[number], self._fates[number]
        fate.is_up, fate.silent_since = False, None
        if not fate.is_new:
            self._router.lose(engine.name, reason)
        if self._may(number):
            self._begin(number, self._restart(number, reason))

    def _begin(self, number: int, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work, name=f"parity-revival-{number}")
        self._fates[number].task = task
        task.add_done_callback(_tell_end)

    async def _restart(self, number: int, reason: str) -> None:
        old, fate = self._engines[number], self._fates[number]
        while self._may(number):
            pause_s = _FIRST_PAUSE_S * 2 ** min(fate.num_restarts, _MOST_DOUBLINGS)
            fate.num_restarts += 1
            log.warning(
                "event=engine_restart engine=%s restart=%d of=%d in_s=%g reason=%r",
                *(old.name, fate.num_restarts, self._restarts, pause_s, reason),
            )
            await asyncio.sleep(pause_s)
            try:
                engine = await self._places.start(number)
            except Exception as error:  # noqa: BLE001 (it is told, and tried again)
                reason = f"its start failed: {type(error).__name__}: {error}"
                continue
            self._engines[number], fate.is_new = engine, True
            fate.replica = Replica(engine.name, engine)
            log.info("event=engine_up engine=%s version=%d", engine.name, engine.version)
            await old.close()
            return

    async def _join(self, number: int) -> None:
        """Hand a new engine to the router; from then on its health checks look after it."""
        engine, fate = self._engines[number], self._fates[number]
        fate.is_new = False
        try:
            await self._router.add(
                engine.name, engine, reason=f"it was started again (restart {fate.num_restarts})"
            )
        except EngineError as error:
            log.warning("event=engine_not_joined engine=%s reason=%r", engine.name, str(error))


def _tell_end(task: "asyncio.Task[None]") -> None:
    """A bug here costs the restarts, not the run; it is told."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("event=revival_failed reason=%r", str(error), exc_info=error)
