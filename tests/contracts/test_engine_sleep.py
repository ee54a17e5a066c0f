"""What every engine that can sleep must do: give memory up, lose nothing, and say why it can't."""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from contracts.test_engines import (
    CASES,
    VOCABULARY,
    Case,
    changed,
    plain_logprobs,
    prompt,
    publish,
    run,
    running,
    state_of,
    until_sampled,
)
from fakes import ScriptedEngine

from parity.engines.embedded.engine import EmbeddedEngine
from parity.engines.engine import Engine, SleepLevel
from parity.errors import EngineError, TransferError, UnsupportedError
from parity.platforms.memory.shelf import Shelf
from parity.types import Completion, Sampling
from parity.weights.manifest import Manifest

every_engine = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
# A pool answers a replica that fails by going on without it: tests/unit/engines tell.
every_single_engine = pytest.mark.parametrize(
    "case", [case for case in CASES if not case.routed], ids=lambda case: case.name
)
both_levels = pytest.mark.parametrize("level", [1, 2])

REQUESTS = [
    (prompt(2 + n % 3 * 4, n % 3), Sampling(max_new_tokens=12 + 4 * n, seed=n)) for n in range(9)
]


def sleepers(case: Case) -> None:
    """Skips an engine that can't sleep, and says so."""
    engine = case.build(case.model())
    if not engine.capabilities.can_sleep:
        pytest.skip(f"{case.engine} says that it can't sleep")
    asyncio.run(engine.close())


@every_engine
def test_an_engine_that_cannot_sleep_refuses_it(case: Case) -> None:
    async def refuse() -> None:
        engine = ScriptedEngine()
        assert not engine.capabilities.can_sleep
        with pytest.raises(UnsupportedError, match=r"ScriptedEngine can't sleep .level 2"):
            await engine.sleep(2)
        with pytest.raises(UnsupportedError, match="can't be woken"):
            await engine.wake()

    asyncio.run(refuse())


async def with_sleeps(engine: Engine, levels: Sequence[SleepLevel]) -> list[Completion]:
    """Answers to REQUESTS while the engine sleeps again and again, a few tokens later each time."""
    calls = [asyncio.create_task(engine.generate(t, s)) for t, s in REQUESTS]
    for number, level in enumerate(levels):
        await until_sampled(engine, 15 * (number + 1))
        await engine.sleep(level)
        before = engine.stats()
        assert before.is_asleep
        for _ in range(50):
            await asyncio.sleep(0)
        assert engine.stats() == before
        await engine.wake()
        assert not engine.stats().is_asleep
    return await asyncio.wait_for(asyncio.gather(*calls), 60)


@every_engine
@both_levels
def test_unfinished_requests_go_on_with_the_same_tokens(case: Case, level: SleepLevel) -> None:
    sleepers(case)
    model = case.model()
    undisturbed = run(case, model, REQUESTS, max_concurrent=6)

    async def disturbed() -> list[Completion]:
        async with running(case.build(model, max_concurrent=6)) as engine:
            return await with_sleeps(engine, (level, level, level, level))

    for (tokens, _), slept, plain in zip(
        REQUESTS, asyncio.run(disturbed()), undisturbed, strict=True
    ):
        assert slept.tokens == plain.tokens
        assert slept.versions == plain.versions
        assert slept.finish_reason == plain.finish_reason
        found = torch.tensor(slept.logprobs, dtype=torch.float64)
        expected = plain_logprobs(model, tokens, slept.tokens, 1.0)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@every_engine
@both_levels
def test_an_engine_that_slept_with_nothing_to_do_gives_the_same_bits(
    case: Case, level: SleepLevel
) -> None:
    sleepers(case)
    model = case.model()

    async def sleep_between() -> list[list[Completion]]:
        async with running(case.build(model)) as engine:
            rounds: list[list[Completion]] = []
            for _ in range(3):
                calls = (engine.generate(t, s) for t, s in REQUESTS)
                rounds.append(await asyncio.gather(*calls))
                await engine.sleep(level)
                await engine.wake()
            return rounds

    expected = run(case, model, REQUESTS)
    assert asyncio.run(sleep_between()) == [expected] * 3


@every_engine
@both_levels
def test_what_comes_while_asleep_waits_and_aborts_are_seen_to(
    case: Case, level: SleepLevel
) -> None:
    sleepers(case)

    async def ask() -> None:
        async with running(case.build(case.model())) as engine:
            long = Sampling(max_new_tokens=40, seed=1)
            early = [
                asyncio.create_task(engine.generate(prompt(4), long, request_id=f"r{n}"))
                for n in range(2)
            ]
            await until_sampled(engine, 6)
            await engine.sleep(level)
            late = asyncio.create_task(engine.generate(prompt(5), long, request_id="late"))
            gone = asyncio.create_task(engine.generate(prompt(5), long, request_id="gone"))
            await asyncio.sleep(0)
            await engine.abort("r0")
            await engine.abort("gone")
            aborted = await asyncio.wait_for(early[0], 30)
            assert aborted.finish_reason == "abort"
            assert len(aborted.tokens) >= 1
            assert (await asyncio.wait_for(gone, 30)).tokens == ()
            early[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await early[1]
            for _ in range(20):
                await asyncio.sleep(0)
            assert not late.done()
            assert engine.stats().is_asleep
            await engine.wake()
            assert len((await asyncio.wait_for(late, 30)).tokens) == 40
            assert engine.stats().running == engine.stats().waiting == 0

    asyncio.run(ask())


@every_engine
def test_sleeping_twice_waking_twice_and_going_deeper_are_harmless(case: Case) -> None:
    sleepers(case)
    model = case.model()

    async def drowse() -> Completion:
        async with running(case.build(model)) as engine:
            await engine.wake()
            await engine.sleep(1)
            await engine.sleep(2)
            await engine.sleep(1)
            await engine.sleep(2)
            await engine.wake()
            await engine.wake()
            return await engine.generate(*REQUESTS[0])

    assert [asyncio.run(drowse())] == run(case, model, REQUESTS[:1])


@every_engine
def test_a_pause_outlasts_a_sleep(case: Case) -> None:
    sleepers(case)

    async def pause() -> None:
        async with running(case.build(case.model())) as engine:
            call = asyncio.create_task(engine.generate(*REQUESTS[8]))
            await until_sampled(engine, 3)
            await engine.pause()
            await engine.sleep(2)
            await engine.wake()
            sampled = engine.stats().sampled_tokens
            for _ in range(50):
                await asyncio.sleep(0)
            assert engine.stats().sampled_tokens == sampled
            await engine.resume()
            await asyncio.wait_for(call, 30)

    asyncio.run(pause())


@every_engine
@both_levels
def test_a_version_published_while_asleep_is_what_it_wakes_into(
    case: Case, level: SleepLevel
) -> None:
    sleepers(case)
    old = case.model()
    new, newer = changed(old), case.model(seed=5)

    async def publish_asleep() -> tuple[Completion, list[Completion]]:
        async with running(case.build(old)) as engine:
            call = asyncio.create_task(engine.generate(prompt(5), Sampling(max_new_tokens=40)))
            await until_sampled(engine, 4)
            await engine.sleep(level)
            await publish(engine, new, 1)
            assert engine.version == 1
            assert engine.stats().is_asleep
            await engine.wake()
            mixed = await asyncio.wait_for(call, 30)
            later = [await engine.generate(*REQUESTS[0])]
            for version, model in ((2, newer), (3, old)):  # once more, and back
                await engine.sleep(level)
                await publish(engine, model, version)
                await engine.sleep(2)
                await engine.wake()
                later.append(await engine.generate(*REQUESTS[0]))
            return mixed, later

    mixed, later = asyncio.run(publish_asleep())
    for model, completion in zip((new, newer, old), later, strict=True):
        (expected,) = run(case, model, REQUESTS[:1])
        assert completion.tokens == expected.tokens
        assert completion.logprobs == expected.logprobs
    switch = mixed.versions.index(1)
    assert 0 < switch < 40
    found = torch.tensor(mixed.logprobs, dtype=torch.float64)
    before = plain_logprobs(old, prompt(5), mixed.tokens[:switch], 1.0)
    torch.testing.assert_close(found[:switch], before, atol=2e-5, rtol=0)
    # All that came before is computed anew, so the rest is the new model's own.
    after = plain_logprobs(new, prompt(5), mixed.tokens, 1.0)[switch:]
    torch.testing.assert_close(found[switch:], after, atol=2e-5, rtol=0)


@every_engine
def test_a_publication_given_up_while_asleep_leaves_the_old_weights(case: Case) -> None:
    sleepers(case)
    old = case.model()
    tensors, aliases = state_of(changed(old))

    async def give_up() -> None:
        async with running(case.build(old)) as engine:
            await engine.sleep(2)
            await engine.begin_load(Manifest.of(1, tensors, aliases))
            await engine.load(tensors[:-1])
            with pytest.raises(TransferError, match=tensors[-1][0]):
                await engine.commit_load(1)
            await engine.abort_load("a tensor is missing")
            await engine.wake()
            assert engine.version == 0
            assert await engine.generate(*REQUESTS[0]) == run_one

    (run_one,) = run(case, old, REQUESTS[:1])
    asyncio.run(give_up())


@every_engine
def test_tensors_that_are_not_sent_keep_their_value_through_a_sleep(case: Case) -> None:
    sleepers(case)
    old = case.model()
    new = changed(old)
    tensors, aliases = state_of(new)
    aliased = {name for pair in aliases for name in pair}
    kept, value = next(
        (name, value) for name, value in state_of(old)[0] if name not in aliased and value.ndim == 1
    )
    manifest = Manifest.of(1, tensors, aliases, skip=(kept,))

    async def publish_part() -> Completion:
        async with running(case.build(old)) as engine:
            await engine.sleep(2)
            await engine.begin_load(manifest)
            await engine.load([(name, value) for name, value in tensors if name != kept])
            await engine.commit_load(1)
            await engine.wake()
            return await engine.generate(*REQUESTS[0])

    with torch.no_grad():
        new.get_parameter(kept).copy_(value)
    (expected,) = run(case, new, REQUESTS[:1])
    found = asyncio.run(publish_part())
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


@every_engine
def test_no_sleep_in_the_middle_of_a_publication(case: Case) -> None:
    sleepers(case)
    model = case.model()
    tensors, aliases = state_of(model)

    async def misuse() -> None:
        async with running(case.build(model)) as engine:
            await engine.begin_load(Manifest.of(1, tensors, aliases))
            with pytest.raises(EngineError, match="version 1 is being published"):
                await engine.sleep(2)
            await engine.load(tensors)
            await engine.commit_load(1)
            await engine.sleep(2)
            await engine.wake()
            assert engine.version == 1

    asyncio.run(misuse())


@every_engine
def test_close_ends_a_sleeping_engine_and_its_requests(case: Case) -> None:
    sleepers(case)

    async def close() -> None:
        engine = case.build(case.model())
        call = asyncio.create_task(engine.generate(*REQUESTS[8]))
        await until_sampled(engine, 3)
        await engine.sleep(2)
        waiting = asyncio.create_task(engine.generate(*REQUESTS[0]))
        await asyncio.sleep(0)
        await engine.close()
        for each in (call, waiting):
            with pytest.raises(EngineError, match="closed"):
                await asyncio.wait_for(each, 30)
        for refused in (engine.sleep(1), engine.wake()):
            with pytest.raises(EngineError, match="closed"):
                await refused

    asyncio.run(close())


def fail_once(
    monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, *, after: bool = False
) -> None:
    """The next call of a shelf's method raises, before or after it has done its work."""
    whole = getattr(Shelf, method)

    def failing(self: Shelf, *args: object) -> None:
        monkeypatch.setattr(Shelf, method, whole)
        if after:
            whole(self, *args)
        raise error

    monkeypatch.setattr(Shelf, method, failing)


@every_single_engine
def test_a_sleep_that_fails_leaves_the_engine_at_work(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleepers(case)
    model = case.model()

    async def fail() -> list[Completion]:
        async with running(case.build(model)) as engine:
            calls = [asyncio.create_task(engine.generate(t, s)) for t, s in REQUESTS]
            await until_sampled(engine, 9)
            fail_once(monkeypatch, "put", OSError(errno.ENOSPC, "No space left on device"))
            with pytest.raises(EngineError, match=r"level 2.*No space left.*goes on as it was"):
                await engine.sleep(2)
            assert not engine.stats().is_asleep
            return await asyncio.wait_for(asyncio.gather(*calls), 60)

    found, expected = asyncio.run(fail()), run(case, model, REQUESTS)
    assert [each.tokens for each in found] == [each.tokens for each in expected]


@every_single_engine
def test_a_wake_that_fails_can_be_tried_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    sleepers(case)
    model = case.model()

    async def fail() -> list[Completion]:
        async with running(case.build(model)) as engine:
            calls = [asyncio.create_task(engine.generate(t, s)) for t, s in REQUESTS]
            await until_sampled(engine, 9)
            await engine.sleep(2)
            fault = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            fail_once(monkeypatch, "take_back", fault)
            with pytest.raises(EngineError, match=r"can't wake.*out of memory.*sleeps on"):
                await engine.wake()
            assert engine.stats().is_asleep
            # With the weights back, the keys and values don't fit.
            assert isinstance(engine, EmbeddedEngine)
            cache = type(engine._scheduler._cache)  # pyright: ignore[reportPrivateUsage]
            whole = cache.reserve

            def full(*args: object, **kwargs: object) -> None:
                monkeypatch.setattr(cache, "reserve", whole)
                raise fault

            monkeypatch.setattr(cache, "reserve", full)
            with pytest.raises(EngineError, match=r"can't wake.*out of memory.*sleeps on"):
                await engine.wake()
            assert engine.stats().is_asleep
            await engine.wake()
            return await asyncio.wait_for(asyncio.gather(*calls), 60)

    found, expected = asyncio.run(fail()), run(case, model, REQUESTS)
    assert [each.tokens for each in found] == [each.tokens for each in expected]


@every_single_engine
def test_a_wake_that_nobody_waits_for_any_more_wakes_all_the_same(case: Case) -> None:
    sleepers(case)

    async def cancel() -> None:
        async with running(case.build(case.model())) as engine:
            call = asyncio.create_task(engine.generate(*REQUESTS[8]))
            await until_sampled(engine, 3)
            await engine.sleep(2)
            await asyncio.sleep(0.05)  # nothing else is under way in the engine
            wake = asyncio.create_task(engine.wake())
            await asyncio.sleep(0)
            wake.cancel()
            with pytest.raises(asyncio.CancelledError):
                await wake
            await asyncio.wait_for(call, 30)
            await engine.wake()

    asyncio.run(cancel())


@every_single_engine
def test_the_memory_of_cache_and_weights_is_really_given_up(case: Case, tmp_path: Path) -> None:
    sleepers(case)

    async def measure() -> None:
        engine = case.build(case.model())
        assert isinstance(engine, EmbeddedEngine)
        scheduler, decoder = engine._scheduler, engine._decoder  # pyright: ignore[reportPrivateUsage]
        async with running(engine):
            await engine.generate(*REQUESTS[0])
            assert scheduler.cache_size_bytes > 0
            await engine.sleep(1)
            assert scheduler.cache_size_bytes == 0
            assert sum(float(t.abs().sum()) for t in decoder.served().values()) > 0
            await engine.sleep(2)
            assert engine._sleeper._shelf.size_bytes > 0  # pyright: ignore[reportPrivateUsage]
            await engine.wake()
            assert len((await engine.generate((VOCABULARY - 1,), Sampling(3))).tokens) == 3

    asyncio.run(measure())
