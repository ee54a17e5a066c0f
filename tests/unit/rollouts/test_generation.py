"""What a publication does to unfinished requests: finish, continue, restart."""

import asyncio

from fakes import ScriptedEngine

from parity.rollouts.config import InFlight
from parity.rollouts.generation import Generation
from parity.types import Completion, Sampling

SAMPLING = Sampling(max_new_tokens=4)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def publish_under(in_flight: InFlight) -> tuple[ScriptedEngine, list[Completion], bool]:
    """Two requests run, version 1 is published, then everything may finish."""
    engine = ScriptedEngine()
    generation = Generation(engine, in_flight=in_flight)
    requests = [asyncio.create_task(generation.generate((1, 2), SAMPLING)) for _ in range(2)]
    await settle()
    switch = asyncio.create_task(generation.switch(lambda: engine.commit_load(1)))
    await settle()
    was_live_at_once = engine.commits == [1]
    engine.finish_all()
    await settle()
    await switch
    engine.finish_all()
    return engine, await asyncio.gather(*requests), was_live_at_once


def test_continue_commits_while_requests_run() -> None:
    _, completions, was_live_at_once = asyncio.run(publish_under("continue"))
    assert was_live_at_once
    assert [c.versions for c in completions] == [(1, 1), (1, 1)]


def test_finish_waits_for_the_requests_that_run() -> None:
    engine, completions, was_live_at_once = asyncio.run(publish_under("finish"))
    assert not was_live_at_once
    assert engine.commits == [1]
    assert [c.versions for c in completions] == [(0, 0), (0, 0)]


def test_restart_begins_again_on_the_new_weights() -> None:
    engine, completions, _ = asyncio.run(publish_under("restart"))
    assert len(engine.samplings) == 4
    assert [c.versions for c in completions] == [(1, 1), (1, 1)]
    assert {c.finish_reason for c in completions} == {"stop"}


def test_no_request_begins_while_a_publication_waits() -> None:
    async def body() -> None:
        engine = ScriptedEngine()
        generation = Generation(engine, in_flight="finish")
        first = asyncio.create_task(generation.generate((1,), SAMPLING))
        await settle()
        switch = asyncio.create_task(generation.switch(lambda: engine.commit_load(1)))
        second = asyncio.create_task(generation.generate((2,), SAMPLING))
        await settle()
        assert len(engine.requests) == 1
        engine.finish_all()
        await switch
        await settle()
        engine.finish_all()
        assert (await first).versions == (0, 0)
        assert (await second).versions == (1, 1)

    asyncio.run(body())


def test_a_failed_commit_opens_the_gate_again() -> None:
    async def body() -> None:
        engine = ScriptedEngine()
        generation = Generation(engine, in_flight="finish")

        async def fail() -> None:
            raise RuntimeError("refused")

        try:
            await generation.switch(fail)
        except RuntimeError:
            request = asyncio.create_task(generation.generate((1,), SAMPLING))
            await settle()
            engine.finish_all()
            assert (await request).versions == (0, 0)
        else:
            raise AssertionError("the commit's error was swallowed")

    asyncio.run(body())
