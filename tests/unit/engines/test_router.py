"""Requests over replicas that die, hang and err: each one ends exactly once."""

import asyncio
import logging

import pytest
from fake_engines import FakeEngine, run_jumping, standing_still

from parity.engines.config import RouterConfig
from parity.engines.engine import EngineStats
from parity.engines.router import Router
from parity.errors import ConfigError, EngineError, EngineLostError, RequestError
from parity.types import Completion, Sampling

SAMPLING = Sampling(max_new_tokens=8)
FAST = RouterConfig(check_interval_s=1.0, check_timeout_s=2.0, sticky_slack=0)


def pair(**settings) -> tuple[FakeEngine, FakeEngine]:
    return FakeEngine(**settings), FakeEngine(**settings)


def start(router: Router, count: int, *, first: int = 0) -> list[asyncio.Task[Completion]]:
    """Requests that are on their replicas when this loop comes round."""
    return [
        asyncio.create_task(router.generate((1, n), SAMPLING, request_id=f"q{n}"))
        for n in range(first, first + count)
    ]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_dead_replicas_requests_begin_again_elsewhere_and_none_is_lost_or_doubled(
    caplog,
) -> None:
    async def die() -> None:
        one, two = pair(latency_s=4.0)
        router = Router({"one": one, "two": two}, FAST)
        calls = start(router, 10)
        await asyncio.sleep(2.2)
        assert len(one.began) == len(two.began) == 5
        one.fall("dead")
        done = await asyncio.gather(*calls)
        assert all(len(completion.tokens) == 4 for completion in done)
        assert len(two.ended) == 10
        assert sorted(name for name, _ in two.began)[0] == "q0~1"
        assert router.metrics() == {
            "router/replicas_alive": 1,
            "router/departures": 1,
            "router/joins": 0,
            "router/retries": 5,
            "router/in_flight_spread": 1,
        }
        assert router.metrics()["router/in_flight_spread"] == 0, "told once"
        assert "dead" in router.replicas["one"]
        assert router.replicas["two"] == "serving"
        (event,) = router.events
        assert (event.replica, event.change, event.alive) == ("one", "left", 1)
        assert router.stats().waiting == 0
        await router.close()

    with caplog.at_level(logging.INFO, logger="parity.engines"):
        run_jumping(die())
    (line,) = [r.getMessage() for r in caplog.records if "event=replica_left" in r.getMessage()]
    assert "replica=one" in line
    assert "lost_requests=5" in line
    assert "is lost" in line


@pytest.mark.parametrize("mode", ["hung", "deaf"])
def test_a_replica_that_answers_its_check_late_leaves_and_its_requests_end_elsewhere(mode) -> None:
    async def hang() -> None:
        one, two = pair(latency_s=3.0)
        router = Router({"one": one, "two": two}, FAST)
        calls = start(router, 6)
        await asyncio.sleep(0.5)
        one.fall(mode)
        if mode == "deaf":
            one.latency_s = 1e4
            one.num_tokens = 1
        done = await asyncio.gather(*calls)
        assert all(completion.finish_reason == "stop" for completion in done)
        assert now() < 0.5 + 1.0 + 2.0 + 3.1  # interval, limit of a check, one answer
        assert "didn't end its health check within 2 s" in router.replicas["one"]
        one.fall("dead")
        await router.close()

    run_jumping(hang())


def test_a_replica_that_computes_nothing_for_its_requests_leaves() -> None:
    async def stall() -> None:
        one, two = pair()
        one.latency_s = 1e5
        config = RouterConfig(check_interval_s=1.0, stall_timeout_s=20.0, sticky_slack=0)
        router = Router({"one": one, "two": two}, config)
        done = await asyncio.gather(*start(router, 4))
        assert len(done) == 4
        assert 20.0 < now() < 25.0
        assert "computed no token for 20 s" in router.replicas["one"]
        await router.close()

    run_jumping(stall())


def test_a_paused_or_idle_replica_is_no_stalled_one() -> None:
    async def rest() -> None:
        (one,) = (FakeEngine(),)
        config = RouterConfig(check_interval_s=1.0, stall_timeout_s=20.0)
        router = Router({"one": one}, config)
        await router.pause()
        calls = start(router, 2)
        await asyncio.sleep(100)
        await router.resume()
        await asyncio.gather(*calls)
        await asyncio.sleep(100)
        assert router.replicas == {"one": "serving"}
        await router.close()

    run_jumping(rest())


def test_time_in_which_the_event_loop_itself_stood_still_is_no_replicas_fault() -> None:
    async def block() -> None:
        one = FakeEngine()
        slow_check = one.check

        async def check() -> int:
            await asyncio.sleep(0.5)
            for _ in range(20):  # an answer takes some turns of the loop
                await asyncio.sleep(0)
            return await slow_check()

        one.check = check  # pyright: ignore[reportAttributeAccessIssue]
        router = Router({"one": one}, FAST)
        calls = start(router, 1)
        await asyncio.sleep(1.2)  # a check has begun
        standing_still(60.0)
        await asyncio.gather(*calls)
        await asyncio.sleep(5)
        assert router.events == ()
        await router.close()

    run_jumping(block())


def test_a_request_that_no_engine_can_serve_is_refused_at_once_and_nobody_leaves() -> None:
    async def refuse() -> None:
        one, two = pair(fails={"generate": RequestError("the prompt is too long")})
        router = Router({"one": one, "two": two}, FAST)
        with pytest.raises(RequestError, match="too long"):
            await router.generate((1,), SAMPLING)
        assert len(one.began) + len(two.began) == 1
        assert router.metrics()["router/retries"] == 0
        assert set(router.replicas.values()) == {"serving"}
        await router.close()

    run_jumping(refuse())


@pytest.mark.parametrize("error", [EngineError("a hiccup"), ConnectionError("reset"), KeyError(1)])
def test_what_a_living_replica_fails_at_is_tried_on_the_other_one(error) -> None:
    async def fail() -> None:
        one, two = FakeEngine(fails={"generate": error}), FakeEngine()
        router = Router({"one": one, "two": two})
        completion = await router.generate((1,), SAMPLING)
        assert completion.finish_reason == "stop"
        assert len(one.began) == len(two.began) == 1
        assert router.replicas == {"one": "serving", "two": "serving"}
        assert router.metrics()["router/retries"] == 1
        await router.close()

    run_jumping(fail())


@pytest.mark.parametrize("max_retries", [0, 1, 3])
def test_a_request_is_tried_again_at_most_as_often_as_configured(max_retries: int) -> None:
    async def fail() -> None:
        engines = [FakeEngine(fails={"generate": EngineError("poison")}) for _ in range(3)]
        config = RouterConfig(max_retries=max_retries)
        router = Router({f"r{n}": engine for n, engine in enumerate(engines)}, config)
        with pytest.raises(EngineError, match=f"failed {max_retries + 1} times") as caught:
            await router.generate((1,), SAMPLING)
        assert not isinstance(caught.value, EngineLostError)
        assert str(caught.value.__cause__) == "poison"
        assert sum(len(engine.began) for engine in engines) == max_retries + 1
        assert router.metrics()["router/retries"] == max_retries
        await router.close()

    run_jumping(fail())


def test_a_poison_request_takes_no_more_replicas_than_it_has_tries() -> None:
    async def poison() -> None:
        engines = [FakeEngine() for _ in range(5)]
        for engine in engines:
            engine.generate = killing(engine)  # pyright: ignore[reportAttributeAccessIssue]
        router = Router({f"r{n}": engine for n, engine in enumerate(engines)}, FAST)
        with pytest.raises(EngineError, match="failed 3 times"):
            await router.generate((1,), SAMPLING)
        assert router.metrics()["router/replicas_alive"] == 2
        await router.close()

    def killing(engine: FakeEngine):
        async def generate(tokens, sampling, *, request_id=None) -> Completion:
            engine.fall("dead")
            raise EngineLostError("segmentation fault")

        return generate

    run_jumping(poison())


def test_without_a_replica_every_request_ends_at_once_and_says_what_became_of_each() -> None:
    async def end() -> None:
        one, two = pair(latency_s=50.0)
        router = Router({"one": one, "two": two}, FAST)
        calls = start(router, 8)
        await asyncio.sleep(0.7)
        one.fall("dead")
        await asyncio.sleep(1.0)
        died = now()
        two.fall("dead")
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert now() - died < 0.1
        for error in done:
            assert isinstance(error, EngineLostError)
            assert "one: " in str(error)
            assert "two: " in str(error)
            assert isinstance(error.__cause__, EngineLostError)
        with pytest.raises(EngineLostError, match="no engine replica is left"):
            await router.generate((1,), SAMPLING)
        for call in (router.check, router.pause, router.resume):
            with pytest.raises(EngineLostError, match="no engine replica is left"):
                await call()
        await router.drain()
        await router.close()

    run_jumping(end())


def test_the_last_replicas_death_is_said_also_where_no_further_try_is_allowed() -> None:
    async def end() -> None:
        one = FakeEngine()
        router = Router({"one": one}, RouterConfig(max_retries=0))
        one.fall("dead")
        with pytest.raises(EngineLostError, match="no engine replica is left"):
            await router.generate((1,), SAMPLING)
        assert router.metrics()["router/retries"] == 0
        await router.close()

    run_jumping(end())


def test_a_replica_that_changes_its_version_by_itself_is_never_routed_to() -> None:
    async def change() -> None:
        one, two = pair()
        router = Router({"one": one, "two": two}, FAST)
        one.live = 3
        await asyncio.gather(*start(router, 4))
        assert one.began == []
        assert "version 3 while the pool is at version 0" in router.replicas["one"]
        await router.close()

    run_jumping(change())


def test_the_check_finds_a_version_that_the_proxy_does_not_know_of() -> None:
    async def reset() -> None:
        one, two = pair()

        async def check() -> int:
            return 7

        one.check = check  # pyright: ignore[reportAttributeAccessIssue]
        router = Router({"one": one, "two": two}, FAST)
        await router.generate((1,), SAMPLING)
        await asyncio.sleep(1.5)
        assert "version 7" in router.replicas["one"]
        await router.close()

    run_jumping(reset())


@pytest.mark.parametrize("stamp", [-1, 2])
def test_an_answer_of_another_version_is_thrown_away_and_its_replica_leaves(stamp: int) -> None:
    async def stamp_wrongly() -> None:
        one, two = pair()
        one.stamp = stamp
        router = Router({"one": one, "two": two}, FAST)
        for completion in await asyncio.gather(*start(router, 4)):
            assert set(completion.versions) == {0}
        assert f"stamped tokens {stamp}" in router.replicas["one"]
        await router.close()

    run_jumping(stamp_wrongly())


def test_cancelling_a_request_ends_it_at_its_replica_too() -> None:
    async def cancel() -> None:
        one = FakeEngine(latency_s=1e4)
        router = Router({"one": one}, FAST)
        (call,) = start(router, 1)
        await asyncio.sleep(0.5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await router.drain()
        assert one.ended == ["q0"]
        assert router.stats().running == router.stats().waiting == 0
        await router.close()

    run_jumping(cancel())


def test_abort_ends_a_request_with_its_tokens_or_without_where_its_replica_hangs() -> None:
    async def abort() -> None:
        one, two = pair(latency_s=8.0)
        config = RouterConfig(check_interval_s=1e4, call_timeout_s=5.0, sticky_slack=0)
        router = Router({"one": one, "two": two}, config)
        here, there = start(router, 2)
        await asyncio.sleep(5.0)
        await router.abort("q1")
        assert (await there).finish_reason == "abort"
        assert len((await there).tokens) == 2
        one.fall("hung")
        await router.abort("q0")
        completion = await here
        assert completion.finish_reason == "abort"
        assert completion.tokens == ()
        assert "abort failed" in router.replicas["one"]
        await router.abort("unknown")
        assert [name for name, _ in two.began] == ["q1"]
        one.fall("dead")
        await router.close()

    run_jumping(abort())


def test_drain_does_not_wait_for_a_replica_that_hangs() -> None:
    async def drain() -> None:
        one, two = pair()
        router = Router({"one": one, "two": two}, FAST)
        await asyncio.gather(*start(router, 4))
        one.fall("hung")
        began = now()
        await router.drain()
        assert now() - began < 4.0
        assert router.replicas["two"] == "serving"
        one.fall("dead")
        await router.close()

    run_jumping(drain())


def test_close_ends_every_request_and_every_engine_also_one_that_hangs() -> None:
    async def close() -> None:
        one, two = pair(latency_s=1e4)
        router = Router({"one": one, "two": two}, RouterConfig(call_timeout_s=3.0))
        calls = start(router, 4)
        await asyncio.sleep(0.5)
        one.fall("hung")
        await router.close()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, EngineLostError) for error in done)
        assert one.is_closed
        assert two.is_closed
        with pytest.raises(EngineLostError, match="closed"):
            await router.generate((1,), SAMPLING)
        await router.close()

    run_jumping(close())


def test_counters_are_summed_and_never_go_back_when_a_replica_leaves() -> None:
    async def count() -> None:
        one, two = pair()
        router = Router({"one": one, "two": two}, FAST)
        await asyncio.gather(*start(router, 6))
        assert router.stats() == EngineStats(sampled_tokens=24, decoded_rows=24, busy_s=12.0)
        one.fall("dead")
        await asyncio.gather(*start(router, 2))
        assert router.stats().sampled_tokens == 32
        router.remove("one", "scaled down")
        assert router.stats().sampled_tokens == 32
        assert router.stats().busy_s == 16.0
        assert router.replicas == {"two": "serving"}
        two.counters = False
        assert router.stats().decoded_rows is None
        await router.close()

    run_jumping(count())


def test_requests_without_a_seed_get_their_own_which_no_replica_changes() -> None:
    async def seeds(count: int) -> set[int | None]:
        engines = [FakeEngine() for _ in range(count)]
        router = Router({f"r{n}": engine for n, engine in enumerate(engines)}, FAST, seed=5)
        await asyncio.gather(*start(router, 6))
        await router.generate((1,), Sampling(max_new_tokens=1, seed=99))
        await router.close()
        return {seed for engine in engines for seed in engine.seeds}

    alone = run_jumping(seeds(1))
    assert alone == run_jumping(seeds(3))
    assert len(alone) == 7
    assert None not in alone
    assert 99 in alone


def test_a_router_is_refused_without_engines_or_with_different_versions() -> None:
    with pytest.raises(EngineError, match="at least one engine"):
        Router({})
    with pytest.raises(EngineError, match="different versions"):
        Router({"one": FakeEngine(live=1), "two": FakeEngine(live=2)})


def test_a_broken_watch_ends_every_request_with_its_reason(monkeypatch) -> None:
    async def breaks() -> None:
        one = FakeEngine(latency_s=1e4)
        router = Router({"one": one}, FAST)
        monkeypatch.setattr(router._health, "_look", None)
        (call,) = start(router, 1)
        with pytest.raises(EngineLostError, match="health checks broke"):
            await call
        await router.close()

    run_jumping(breaks())


def test_a_router_works_in_a_second_event_loop_after_the_first_was_closed() -> None:
    one = FakeEngine()
    router = Router({"one": one}, FAST)
    for _ in range(2):
        assert run_jumping(router.generate((1,), SAMPLING)).finish_reason == "stop"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_retries", -1),
        ("sticky_slack", -1),
        ("check_interval_s", 0.0),
        ("check_timeout_s", -1.0),
        ("stall_timeout_s", float("nan")),
        ("call_timeout_s", 0.0),
        ("join_timeout_s", float("inf")),
    ],
)
def test_settings_that_cannot_work_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        RouterConfig(**{key: value})  # pyright: ignore[reportArgumentType]
