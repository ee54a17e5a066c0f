"""Replicas that are lost come back in their place, at the pool's version, and not for ever."""

import asyncio
import itertools

import pytest
from fake_engines import FakeEngine, run_jumping

pytest.importorskip("ray")

from parity.engines.config import RouterConfig
from parity.engines.router import Router
from parity.errors import RoleError
from parity.runtime.ray.revival import Revival
from parity.types import Sampling

SAMPLING = Sampling(max_new_tokens=8)
CONFIG = RouterConfig(check_interval_s=5.0, check_timeout_s=2.0, stall_timeout_s=60.0)


class Proxy(FakeEngine):
    """A fake engine with what the driver's view of a process has beside."""

    name = ""

    @property
    def is_lost(self) -> bool:
        return self.mode == "dead"


def proxy(number: int, version: int) -> Proxy:
    made = Proxy(live=version)
    made.name = f"engine-{number}"
    return made


class FakePlaces:
    """Starts proxies of an old version, as `failing` says; notes when."""

    def __init__(self, engines: list[Proxy]) -> None:
        self.engines = engines
        self.started_s: list[float] = []
        self.ended: list[int] = []
        self.failing = 0
        self.start_s = 3.0
        self.num_starting = 0

    async def start(self, number: int) -> Proxy:
        assert self.num_starting == 0, "a replica is started once at a time"
        self.num_starting += 1
        try:
            self.started_s.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self.start_s)
            if self.failing:
                self.failing -= 1
                raise RoleError(f"engine-{number} died while it was to load the model")
            return proxy(number, version=-1)
        finally:
            self.num_starting -= 1

    def end(self, number: int) -> None:
        self.ended.append(number)
        self.engines[number].fall("dead")


class Pool:
    """Two replicas at version 4 behind a router, and what brings them back."""

    def __init__(self, *, restarts: int = 3) -> None:
        self.engines = [proxy(number, version=4) for number in range(2)]
        self.router = Router({one.name: one for one in self.engines}, CONFIG)
        self.places = FakePlaces(self.engines)
        self.revival = Revival(self.engines, self.router, self.places, restarts=restarts)
        self.revival.begin()

    async def publish(self, version: int) -> None:
        """As a transport does: to those that serve and to the newcomers."""
        serving = [e for e in self.engines if self.router.replicas.get(e.name) == "serving"]
        newcomers = [self.engines[number] for number in self.revival.newcomers()]

        async def commit() -> None:
            for engine in {*serving, *newcomers}:
                if engine.mode == "well":
                    engine.live = version

        async with self.router.publication():
            await self.router.switch(commit, version=version)

    async def serve(self) -> None:
        done = await asyncio.gather(
            *(self.router.generate((n, n), SAMPLING) for n in range(40)),
        )
        assert all(len(completion.tokens) == 4 for completion in done)

    async def close(self) -> None:
        await self.router.close()
        await self.revival.close()

    def changes(self, name: str = "engine-1") -> list[str]:
        return [event.change for event in self.router.events if event.replica == name]


def test_a_lost_replica_is_started_again_and_joins_with_the_next_publication() -> None:
    async def come_back() -> None:
        pool = Pool()
        first = pool.engines[1]
        await pool.serve()
        first.fall("dead")
        await pool.serve()
        await asyncio.sleep(10)
        second = pool.engines[1]
        assert second is not first
        assert first.is_closed
        assert pool.revival.newcomers() == (1,)
        await pool.serve()
        await asyncio.sleep(60)
        assert not second.began, "the pool is at version 4, and nobody brought it there"
        assert pool.router.replicas["engine-1"] != "serving"
        await pool.publish(5)
        await asyncio.sleep(5)
        assert pool.router.replicas == {"engine-0": "serving", "engine-1": "serving"}
        assert pool.revival.newcomers() == ()
        await pool.serve()
        assert {version for _, version in second.began} == {5}
        assert pool.changes() == ["left", "joined"]
        assert len(pool.places.started_s) == 1
        assert pool.router.metrics()["router/joins"] == 1
        await pool.close()

    run_jumping(come_back())


def test_a_newcomer_that_fetches_the_live_version_by_itself_joins_without_a_publication() -> None:
    async def fetch() -> None:
        pool = Pool()
        pool.engines[1].fall("dead")
        await asyncio.sleep(20)
        pool.engines[1].live = 4
        await asyncio.sleep(3)
        assert pool.router.replicas["engine-1"] == "serving"
        await pool.close()

    run_jumping(fetch())


def test_a_newcomer_that_wasnt_brought_along_waits_for_the_publication_after() -> None:
    async def wait() -> None:
        pool = Pool()
        pool.engines[1].fall("dead")
        await asyncio.sleep(20)

        async def commit() -> None:
            pool.engines[0].live = 5  # the transport dropped the newcomer

        await pool.router.switch(commit, version=5)
        await asyncio.sleep(20)
        assert pool.router.replicas["engine-1"] != "serving"
        assert pool.revival.newcomers() == (1,)
        await pool.publish(6)
        await asyncio.sleep(5)
        assert pool.router.replicas["engine-1"] == "serving"
        await pool.close()

    run_jumping(wait())


def test_starts_that_fail_are_told_and_tried_again_after_pauses_that_double(caplog) -> None:
    async def fail() -> None:
        pool = Pool(restarts=4)
        pool.places.failing = 100
        await pool.serve()
        pool.engines[1].fall("dead")
        await asyncio.sleep(300)
        gaps = [b - a for a, b in itertools.pairwise(pool.places.started_s)]
        assert gaps == [3.0 + 2.0, 3.0 + 4.0, 3.0 + 8.0]
        assert pool.router.replicas["engine-0"] == "serving"
        await pool.serve()
        await pool.close()

    run_jumping(fail())
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("event=engine_restart " in text for text in told) == 4
    assert any("died while it was to load the model" in text for text in told)
    assert sum("event=engine_given_up engine=engine-1 restarts=4" in text for text in told) == 1


def test_a_replica_that_dies_again_and_again_costs_its_restarts_and_no_more() -> None:
    async def die() -> None:
        pool = Pool(restarts=2)
        for version in range(5, 9):
            pool.engines[1].fall("dead")
            await asyncio.sleep(60)
            await pool.publish(version)
            await asyncio.sleep(20)
            await pool.serve()
        assert len(pool.places.started_s) == 2
        assert pool.changes() == ["left", "joined", "left", "joined", "left"]
        assert pool.router.version == 8
        await pool.close()

    run_jumping(die())


def test_a_newcomer_that_dies_before_it_joins_is_started_again() -> None:
    async def die() -> None:
        pool = Pool()
        pool.engines[1].fall("dead")
        await asyncio.sleep(20)
        pool.engines[1].fall("dead")
        assert pool.revival.newcomers() == ()
        await asyncio.sleep(20)
        assert pool.revival.newcomers() == (1,)
        await pool.publish(5)
        await asyncio.sleep(5)
        assert pool.changes() == ["left", "joined"]
        await pool.close()

    run_jumping(die())


def test_a_replica_that_hung_and_answers_again_is_brought_along_without_a_restart() -> None:
    async def hang() -> None:
        pool = Pool()
        await pool.serve()
        pool.engines[1].fall("hung")
        await asyncio.sleep(20)
        assert pool.router.replicas["engine-1"] != "serving"
        await pool.publish(5)
        pool.engines[1].come_back()
        await asyncio.sleep(20)
        assert pool.revival.newcomers() == (1,)
        await pool.publish(6)
        await asyncio.sleep(400)
        assert pool.router.replicas["engine-1"] == "serving"
        assert pool.places.started_s == pool.places.ended == []
        await pool.close()

    run_jumping(hang())


def test_a_replica_that_stays_silent_is_ended_and_started_again() -> None:
    async def hang() -> None:
        pool = Pool()
        await pool.serve()
        pool.engines[1].fall("hung")
        await asyncio.sleep(55)
        assert pool.places.ended == []
        await asyncio.sleep(45)
        assert pool.places.ended == [1]
        assert len(pool.places.started_s) == 1
        await pool.publish(5)
        await asyncio.sleep(5)
        assert pool.router.replicas["engine-1"] == "serving"
        await pool.close()

    run_jumping(hang())


@pytest.mark.parametrize("after_s", [0.5, 2.5, 20.0])
def test_the_end_of_the_run_breaks_off_whatever_was_begun(after_s: float) -> None:
    async def end() -> None:
        pool = Pool()
        pool.engines[1].fall("dead")
        await asyncio.sleep(after_s)
        await pool.close()
        assert pool.engines[1].is_closed
        num_started = len(pool.places.started_s)
        await asyncio.sleep(100)
        assert len(pool.places.started_s) == num_started
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_jumping(end())


def test_nothing_is_started_for_engines_that_their_owner_closed() -> None:
    async def end() -> None:
        pool = Pool()
        await pool.serve()
        await pool.router.close()
        await asyncio.sleep(100)
        assert pool.places.started_s == []
        await pool.revival.close()

    run_jumping(end())


def test_without_restarts_the_pool_goes_on_with_those_that_are_left(caplog) -> None:
    async def die() -> None:
        pool = Pool(restarts=0)
        pool.engines[1].fall("dead")
        await asyncio.sleep(100)
        await pool.serve()
        assert pool.places.started_s == []
        await pool.close()

    run_jumping(die())
    assert sum("event=engine_given_up" in record.getMessage() for record in caplog.records) == 1
