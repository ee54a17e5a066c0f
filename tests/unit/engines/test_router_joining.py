"""Replicas that are new or come back: they serve at the pool's version or not at all."""

import asyncio

import pytest
from fake_engines import FakeEngine, run_jumping

from parity.engines.config import RouterConfig
from parity.engines.engine import Engine, EngineCapabilities
from parity.engines.pool.pool import PoolEvent
from parity.engines.router import Router
from parity.errors import EngineError, EngineLostError, TransferError
from parity.types import Sampling
from parity.weights.manifest import Manifest

SAMPLING = Sampling(max_new_tokens=8)
CONFIG = RouterConfig(
    check_interval_s=1.0, check_timeout_s=2.0, join_timeout_s=50.0, sticky_slack=0
)


class Bringing:
    """Publishes to joining replicas; `before` runs in the middle of it."""

    def __init__(self, before=None) -> None:
        self.brought: list[tuple[str, int]] = []
        self._before = before

    async def __call__(self, name: str, engine: Engine, version: int) -> None:
        self.brought.append((name, version))
        await asyncio.sleep(1)
        if self._before is not None:
            await self._before()
        assert isinstance(engine, FakeEngine)
        engine.live = version


def test_a_new_replica_of_the_pools_version_joins_without_a_publication() -> None:
    async def join() -> None:
        bring = Bringing()
        router = Router({"one": FakeEngine(live=2)}, CONFIG, bring=bring)
        two = FakeEngine(live=2)
        await router.add("two", two)
        assert bring.brought == []
        assert router.replicas == {"one": "serving", "two": "serving"}
        await asyncio.gather(*(router.generate((n,), SAMPLING) for n in range(4)))
        assert len(two.began) == 2
        assert [event.change for event in router.events] == ["joined"]
        await router.close()

    run_jumping(join())


@pytest.mark.parametrize("version", [0, 7])
def test_a_new_replica_of_another_version_is_brought_to_the_pools(version: int) -> None:
    async def join() -> None:
        bring = Bringing()
        router = Router({"one": FakeEngine(live=2)}, CONFIG, bring=bring)
        two = FakeEngine(live=version)
        joining = asyncio.create_task(router.add("two", two))
        await asyncio.sleep(0.5)
        await router.generate((1,), SAMPLING)
        assert two.began == []
        await joining
        assert bring.brought == [("two", 2)]
        await asyncio.gather(*(router.generate((n,), SAMPLING) for n in range(4)))
        assert {stamp for _, stamp in two.began} == {2}
        await router.close()

    run_jumping(join())


def test_a_replica_of_another_version_is_refused_without_a_way_to_bring_it() -> None:
    async def refuse() -> None:
        router = Router({"one": FakeEngine(live=2)}, CONFIG)
        with pytest.raises(EngineError, match="serves version 1 and the pool version 2"):
            await router.add("two", FakeEngine(live=1))
        assert "version 1" in router.replicas["two"]
        assert router.events[-1].change == "refused"
        await asyncio.sleep(30)
        assert len(router.events) == 1
        await router.close()

    run_jumping(refuse())


def test_a_replica_that_serves_another_version_after_its_publication_is_refused() -> None:
    async def refuse() -> None:
        async def bring(name: str, engine: Engine, version: int) -> None: ...

        router = Router({"one": FakeEngine(live=2)}, CONFIG, bring=bring)
        with pytest.raises(EngineError, match="after version 2 was published to it"):
            await router.add("two", FakeEngine(live=1))
        await asyncio.gather(*(router.generate((n,), SAMPLING) for n in range(4)))
        await router.close()

    run_jumping(refuse())


def test_a_replica_whose_publication_fails_or_hangs_is_refused_within_the_limit() -> None:
    async def refuse() -> None:
        async def fails() -> None:
            raise TransferError("no route")

        async def hangs() -> None:
            while True:
                try:
                    await asyncio.sleep(1e5)
                except asyncio.CancelledError:
                    await asyncio.sleep(1e5)
                    return

        router = Router({"one": FakeEngine(live=2)}, CONFIG, bring=Bringing(fails))
        with pytest.raises(EngineError, match="no route"):
            await router.add("two", FakeEngine())
        await router.close()
        router = Router({"one": FakeEngine(live=2)}, CONFIG, bring=Bringing(hangs))
        began = asyncio.get_running_loop().time()
        with pytest.raises(EngineError, match="within 50 s"):
            await router.add("two", FakeEngine())
        assert asyncio.get_running_loop().time() - began < 51
        await router.close()

    run_jumping(refuse())


def test_a_publication_that_comes_between_is_brought_to_the_new_replica_as_well() -> None:
    async def between() -> None:
        one = FakeEngine()
        published: list[int] = []

        async def publish() -> None:
            if not published:
                published.append(1)
                await router.begin_load(Manifest.of(1, []))
                await router.commit_load(1)

        bring = Bringing(publish)
        router = Router({"one": one}, CONFIG, bring=bring)
        two = FakeEngine(live=5)
        await router.add("two", two)
        assert bring.brought == [("two", 0), ("two", 1)]
        assert two.live == router.version == 1
        await router.close()

    run_jumping(between())


def test_nobody_joins_while_a_publication_is_under_way() -> None:
    async def wait() -> None:
        one, two = FakeEngine(), FakeEngine()
        router = Router({"one": one}, CONFIG, bring=Bringing())
        await router.begin_load(Manifest.of(1, []))
        joining = asyncio.create_task(router.add("two", two))
        await asyncio.sleep(10)
        assert not joining.done()
        await router.commit_load(1)
        await joining
        assert two.live == 1
        await router.begin_load(Manifest.of(2, []))
        with pytest.raises(EngineError, match="within 50 s"):
            await router.add("three", FakeEngine())
        await router.close()

    run_jumping(wait())


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_joining_replica_is_paused_as_the_pool_is(*, is_paused: bool) -> None:
    async def pause() -> None:
        router = Router({"one": FakeEngine()}, CONFIG)
        two = FakeEngine(is_paused=not is_paused, staged=9)
        if is_paused:
            await router.pause()
        await router.add("two", two)
        assert two.is_paused is is_paused
        assert two.staged is None
        await router.close()

    run_jumping(pause())


def test_a_pool_that_only_joins_is_resumed_when_somebody_has_joined() -> None:
    async def resume() -> None:
        one, two = FakeEngine(live=1), FakeEngine()
        router = Router({"one": one}, CONFIG, bring=Bringing())
        await router.pause()
        call = asyncio.create_task(router.generate((1,), SAMPLING))
        await asyncio.sleep(0.1)
        joining = asyncio.create_task(router.add("two", two))
        await asyncio.sleep(0.1)
        one.fall("dead")
        await router.resume()
        assert (await call).finish_reason == "stop"
        await joining
        assert not two.is_paused
        await router.close()

    run_jumping(resume())


def test_a_replica_that_answers_again_is_brought_back_by_itself() -> None:
    async def recover() -> None:
        events: list[PoolEvent] = []
        one, two = FakeEngine(), FakeEngine()
        bring = Bringing()
        router = Router({"one": one, "two": two}, CONFIG, bring=bring, on_change=events.append)
        await router.check()
        two.fall("hung")
        await asyncio.sleep(5)
        assert router.metrics()["router/replicas_alive"] == 1
        await router.begin_load(Manifest.of(1, []))
        await router.commit_load(1)
        two.come_back()
        await asyncio.sleep(5)
        assert bring.brought == [("two", 1)]
        assert router.replicas == {"one": "serving", "two": "serving"}
        assert [event.change for event in events] == ["left", "joined"]
        assert events == list(router.events)
        await router.close()

    run_jumping(recover())


def test_a_replica_that_keeps_failing_is_tried_less_and_less_often() -> None:
    async def flap() -> None:
        one, two = FakeEngine(), FakeEngine()
        two.fails = {"generate": ConnectionError("reset"), "check": ConnectionError("reset")}
        router = Router({"one": one, "two": two}, CONFIG)

        async def flicker() -> None:
            while True:
                two.fails = {}
                await asyncio.sleep(0.5)
                two.fails = {"check": ConnectionError("reset")}
                await asyncio.sleep(0.6)

        await router.check()
        flickering = asyncio.create_task(flicker())
        await asyncio.sleep(1000)
        flickering.cancel()
        assert 2 < router.metrics()["router/departures"] < 40
        await router.close()

    run_jumping(flap())


def test_requests_wait_for_a_replica_that_is_joining_when_no_other_is_left() -> None:
    async def wait() -> None:
        one, two = FakeEngine(live=1), FakeEngine()
        router = Router({"one": one}, CONFIG, bring=Bringing())
        one.fall("dead")
        joining = asyncio.create_task(router.add("two", two))
        await asyncio.sleep(0.1)
        completion = await router.generate((1,), SAMPLING)
        assert set(completion.versions) == {1}
        assert len(two.began) == 1
        await joining
        await router.close()

    run_jumping(wait())


def test_requests_that_wait_for_a_joining_replica_end_when_it_is_refused() -> None:
    async def wait() -> None:
        async def hangs() -> None:
            await asyncio.sleep(1e5)

        one = FakeEngine(live=1)
        router = Router({"one": one}, CONFIG, bring=Bringing(hangs))
        one.fall("dead")
        joining = asyncio.create_task(router.add("two", FakeEngine()))
        await asyncio.sleep(0.1)
        calls = [asyncio.create_task(router.generate((n,), SAMPLING)) for n in range(3)]
        await asyncio.sleep(1)
        assert router.stats().waiting == 3
        await router.abort("routed-1")
        assert (await calls[1]).finish_reason == "abort"
        for call in (calls[0], calls[2]):
            with pytest.raises(EngineLostError, match=r"one: .*two: "):
                await call
        with pytest.raises(EngineError, match="within 50 s"):
            await joining
        await router.close()

    run_jumping(wait())


def test_a_removed_replica_leaves_for_good_and_its_requests_go_on_elsewhere() -> None:
    async def remove() -> None:
        one, two = FakeEngine(), FakeEngine()
        router = Router({"one": one, "two": two}, CONFIG, bring=Bringing())
        calls = [asyncio.create_task(router.generate((n,), SAMPLING)) for n in range(6)]
        await asyncio.sleep(0.3)
        router.remove("two", "scaled down")
        assert len(await asyncio.gather(*calls)) == 6
        await asyncio.sleep(10)
        assert router.replicas == {"one": "serving"}
        with pytest.raises(EngineError, match="in the pool already"):
            await router.add("one", FakeEngine())
        await router.add("two", FakeEngine())
        router.remove("unknown", "nobody has this name")
        await router.close()

    run_jumping(remove())


def test_a_replica_that_is_removed_while_it_joins_does_not_join() -> None:
    async def remove() -> None:
        two = FakeEngine()
        router = Router({"one": FakeEngine(live=1)}, CONFIG, bring=Bringing())
        joining = asyncio.create_task(router.add("two", two))
        await asyncio.sleep(0.1)
        router.remove("two", "not wanted any more")
        with pytest.raises(EngineError, match="removed"):
            await joining
        assert router.replicas == {"one": "serving"}
        await router.close()

    run_jumping(remove())


def test_a_replica_that_can_do_less_than_the_pool_is_refused() -> None:
    async def refuse() -> None:
        router = Router({"one": FakeEngine()}, CONFIG)
        can = EngineCapabilities(updates_in_flight=True, is_seeded=False)
        with pytest.raises(EngineError, match="is_seeded"):
            await router.add("two", FakeEngine(can=can))
        with pytest.raises(EngineError, match="10 tokens and the pool of 100"):
            await router.add("three", FakeEngine(longest=10))
        await router.close()

    run_jumping(refuse())


def test_the_pool_promises_what_all_can_do() -> None:
    can = EngineCapabilities(updates_in_flight=False, is_seeded=True, can_sleep=True)
    router = Router({"one": FakeEngine(longest=50), "two": FakeEngine(can=can)})
    assert router.capabilities == EngineCapabilities(updates_in_flight=False, is_seeded=True)
    assert router.max_length == 50


def test_nobody_joins_while_a_transport_publishes_and_who_is_being_asked_is_waited_for() -> None:
    async def publish() -> None:
        one, two = FakeEngine(live=2), FakeEngine(live=2)
        router = Router({"one": one}, CONFIG)
        asked = asyncio.Event()

        async def slow_check() -> int:
            asked.set()
            await asyncio.sleep(2)
            return two.live

        two.check = slow_check
        joining = asyncio.create_task(router.add("two", two))
        await asked.wait()
        async with router.publication():
            num_calls = len(two.calls)
            await asyncio.sleep(10)
            assert len(two.calls) == num_calls, "its load would have been aborted"
            assert router.replicas["two"] == "it is joining"

            async def commit() -> None:
                one.live = two.live = 3

            await router.switch(commit, version=3)
        await joining
        assert router.replicas == {"one": "serving", "two": "serving"}
        assert router.version == 3
        await router.close()

    run_jumping(publish())


def test_a_publication_begins_in_spite_of_a_replica_that_hangs_while_it_joins() -> None:
    async def publish() -> None:
        one, two = FakeEngine(live=2), FakeEngine(live=2)
        router = Router({"one": one}, CONFIG)
        two.fall("hung")
        joining = asyncio.create_task(router.add("two", two))
        await asyncio.sleep(0.1)
        before_s = asyncio.get_running_loop().time()
        async with router.publication():
            assert asyncio.get_running_loop().time() - before_s < 10
        with pytest.raises(EngineError, match="can't join"):
            await joining
        await router.close()

    run_jumping(publish())


def test_a_publication_that_fails_lets_replicas_join_again() -> None:
    async def publish() -> None:
        router = Router({"one": FakeEngine(live=2)}, CONFIG)
        with pytest.raises(TransferError):
            async with router.publication():
                raise TransferError("the sender died")
        await router.add("two", FakeEngine(live=2))
        await router.close()

    run_jumping(publish())
