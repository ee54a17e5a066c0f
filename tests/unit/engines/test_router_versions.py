"""One version for the whole pool: publications and pauses of which a part fails."""

import asyncio

import pytest
import torch
from fake_engines import FakeEngine, run_jumping

from parity.engines.config import RouterConfig
from parity.engines.engine import EngineCapabilities
from parity.engines.pool import together
from parity.engines.router import Router
from parity.errors import EngineError, EngineLostError, TransferError, UnsupportedError
from parity.types import Sampling
from parity.weights.manifest import Manifest

SAMPLING = Sampling(max_new_tokens=8)
CONFIG = RouterConfig(check_interval_s=1e4, check_timeout_s=2.0, call_timeout_s=5.0, sticky_slack=0)


def three() -> tuple[list[FakeEngine], Router]:
    engines = [FakeEngine() for _ in range(3)]
    return engines, Router({f"r{n}": engine for n, engine in enumerate(engines)}, CONFIG)


def manifest(version: int) -> Manifest:
    return Manifest.of(version, [])


async def publish(router: Router, version: int) -> None:
    await router.begin_load(manifest(version))
    await router.load([("weight", torch.zeros(2))])
    await router.commit_load(version)


def alive(router: Router) -> list[str]:
    return [name for name, why in router.replicas.items() if why == "serving"]


@pytest.mark.parametrize("call", ["pause", "resume", "sleep", "wake"])
@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_replica_that_fails_alone_leaves_and_the_others_go_on(call: str, how: str) -> None:
    async def fail() -> None:
        can = EngineCapabilities(updates_in_flight=True, is_seeded=True, can_sleep=True)
        engines = [FakeEngine(can=can) for _ in range(3)]
        router = Router({f"r{n}": engine for n, engine in enumerate(engines)}, CONFIG)
        if how == "raises":
            engines[1].fails = {call: EngineError("no")}
        else:
            engines[1].fall("hung")
        await getattr(router, call)()
        assert alive(router) == ["r0", "r2"]
        assert call in router.replicas["r1"]
        assert all(call in engine.calls for engine in engines)
        assert asyncio.get_running_loop().time() < 5.1
        engines[1].fall("dead")
        await router.close()

    run_jumping(fail())


def test_requests_of_a_replica_that_fails_to_pause_wait_elsewhere_until_resume() -> None:
    async def pause() -> None:
        engines, router = three()
        calls = [asyncio.create_task(router.generate((1, n), SAMPLING)) for n in range(9)]
        await asyncio.sleep(0.1)
        engines[1].fails = {"pause": EngineError("no")}
        await router.pause()
        await asyncio.sleep(100)
        assert not any(call.done() for call in calls)
        await router.resume()
        assert len(await asyncio.gather(*calls)) == 9
        await router.close()

    run_jumping(pause())


def test_a_call_that_all_refuse_fails_and_everyone_stays() -> None:
    async def refuse() -> None:
        engines, router = three()
        for engine in engines:
            engine.fails = {
                "begin_load": TransferError("it doesn't fit"),
                "pause": EngineError("not now"),
            }
        with pytest.raises(TransferError, match="doesn't fit"):
            await router.begin_load(manifest(1))
        with pytest.raises(EngineError, match="not now"):
            await router.pause()
        assert len(alive(router)) == 3
        assert (await router.generate((1,), SAMPLING)).versions == (0,) * 4
        engines[0].fall("dead")
        with pytest.raises(TransferError, match="doesn't fit"):
            await router.begin_load(manifest(1))
        assert alive(router) == ["r1", "r2"]
        await router.close()

    run_jumping(refuse())


def test_sleep_is_refused_where_one_replica_cannot() -> None:
    async def sleep() -> None:
        _, router = three()
        with pytest.raises(UnsupportedError, match="can't sleep"):
            await router.sleep()
        with pytest.raises(UnsupportedError, match="can't be woken"):
            await router.wake()
        await router.close()

    run_jumping(sleep())


def test_a_publication_takes_every_tensor_once_and_gives_it_to_all_in_parts(monkeypatch) -> None:
    monkeypatch.setattr(together, "_PART_BYTES", 16)
    tensors = [(f"t{n}", torch.zeros(3)) for n in range(5)]
    read: list[str] = []

    def reading():
        for name, tensor in tensors:
            read.append(name)
            yield name, tensor

    async def load() -> None:
        engines, router = three()
        await router.begin_load(manifest(1))
        await router.load(reading())
        await router.load([])
        await router.commit_load(1)
        names = [name for name, _ in tensors]
        assert read == names
        for engine in engines:
            assert engine.loaded == names
            assert engine.calls.count("load") == 4  # two, two, one; and the empty one
            assert engine.live == 1
        assert router.version == 1
        await router.close()

    run_jumping(load())


@pytest.mark.parametrize("call", ["begin_load", "load", "commit_load"])
def test_a_replica_that_fails_in_a_publication_leaves_and_the_version_is_live(call: str) -> None:
    async def fail() -> None:
        engines, router = three()
        engines[2].fails = {call: TransferError("out of memory")}
        await publish(router, 1)
        assert router.version == 1
        assert alive(router) == ["r0", "r1"]
        assert "out of memory" in router.replicas["r2"]
        calls = (router.generate((1, n), SAMPLING) for n in range(6))
        for completion in await asyncio.gather(*calls):
            assert set(completion.versions) == {1}
        assert engines[2].began == []
        await router.close()

    run_jumping(fail())


def test_a_refused_commit_leaves_the_old_version_everywhere() -> None:
    async def refuse() -> None:
        engines, router = three()
        await router.begin_load(manifest(1))
        with pytest.raises(TransferError, match="version 2 can't be committed"):
            await router.commit_load(2)
        assert router.version == 0
        assert len(alive(router)) == 3
        await router.abort_load("not wanted")
        assert [engine.staged for engine in engines] == [None] * 3
        await publish(router, 3)
        assert router.version == 3
        await router.close()

    run_jumping(refuse())


def test_new_requests_wait_for_a_switch_and_are_served_by_the_new_version_alone() -> None:
    async def switch() -> None:
        engines, router = three()
        running = [asyncio.create_task(router.generate((1, n), SAMPLING)) for n in range(3)]
        await asyncio.sleep(0.6)
        late: list[asyncio.Task] = []

        async def commit() -> None:
            for engine in engines:
                engine.live = 1
                call = asyncio.create_task(router.generate((2,), SAMPLING))
                late.append(call)
                await asyncio.sleep(3)
                assert not call.done()

        await router.switch(commit, version=1)
        assert router.version == 1
        assert len(alive(router)) == 3
        stamps = [completion.versions for completion in await asyncio.gather(*running)]
        assert stamps == [(0, 0, 1, 1)] + [(0, 0, 0, 0)] * 2
        for completion in await asyncio.gather(*late):
            assert set(completion.versions) == {1}
        await router.close()

    run_jumping(switch())


def test_a_transport_that_reaches_a_part_makes_the_version_live_there_and_the_rest_leaves() -> None:
    async def part() -> None:
        engines, router = three()

        async def commit() -> None:
            engines[0].live = 1
            engines[1].fall("dead")
            raise TransferError("receiver r1 is gone")

        await router.switch(commit, version=1)
        assert router.version == 1
        assert alive(router) == ["r0"]
        assert "dead" in router.replicas["r1"]
        assert "version 0 while the pool is at version 1" in router.replicas["r2"]
        await router.close()

    run_jumping(part())


def test_a_transport_that_reaches_nobody_fails_and_the_old_version_stays() -> None:
    async def fail() -> None:
        _, router = three()

        async def broken() -> None:
            raise TransferError("no route")

        async def idle() -> None: ...

        with pytest.raises(TransferError, match="no route"):
            await router.switch(broken, version=1)
        with pytest.raises(TransferError, match="no replica serves it"):
            await router.switch(idle, version=1)
        assert router.version == 0
        assert len(alive(router)) == 3
        await router.generate((1,), SAMPLING)
        await router.close()

    run_jumping(fail())


@pytest.mark.parametrize("is_done", [False, True])
def test_a_switch_that_is_broken_off_leaves_a_pool_that_serves(*, is_done: bool) -> None:
    async def cancel() -> None:
        engines, router = three()

        async def commit() -> None:
            for engine in engines:
                engine.live = int(is_done)
            await asyncio.sleep(1e5)

        task = asyncio.create_task(router.switch(commit, version=1))
        await asyncio.sleep(0.1)
        with pytest.raises(TransferError, match="is being committed"):
            await router.switch(commit, version=2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        completion = await router.generate((1,), SAMPLING)
        assert set(completion.versions) == {router.version} == {int(is_done)}
        await router.close()

    run_jumping(cancel())


def test_everyone_dying_in_a_call_is_said_with_each_ones_fate() -> None:
    async def die() -> None:
        engines, router = three()
        for engine in engines:
            engine.fall("dead")
        with pytest.raises(EngineLostError, match=r"r0: .*r1: .*r2: "):
            await router.pause()
        await router.abort_load("nobody is there, which is no error")
        with pytest.raises(EngineLostError, match="no engine replica is left"):
            await router.switch(router.resume, version=1)
        await router.close()

    run_jumping(die())
