"""How the engine shares the event loop: settling, several loops, threads that end."""

import asyncio
import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from parity.engines.config import EmbeddedEngineConfig
from parity.engines.embedded.engine import EmbeddedEngine
from parity.errors import EngineError
from parity.types import Sampling


def engine(*, max_concurrent: int = 8, threads: int | None = 1) -> EmbeddedEngine:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    return EmbeddedEngine(
        LlamaForCausalLM(config).eval(),
        config=EmbeddedEngineConfig(max_concurrent=max_concurrent),
        max_length=64,
        eos_token_ids=(),
        decode=None,
        device=torch.device("cpu"),
        threads=threads,
    )


async def after_rounds(found: EmbeddedEngine, rounds: int) -> tuple[int, ...]:
    """Submit a request some rounds of the event loop later."""
    for _ in range(rounds):
        await asyncio.sleep(0)
    return (await found.generate((1, 2), Sampling(max_new_tokens=3))).tokens


def test_requests_of_the_first_rounds_are_in_one_batch() -> None:
    async def submit() -> None:
        found = engine()
        await asyncio.gather(*(after_rounds(found, rounds) for rounds in (0, 3, 7)))
        assert found.stats().prefilled_tokens == 2
        await found.close()

    asyncio.run(submit())


def test_an_engine_can_be_used_from_one_event_loop_after_another() -> None:
    found = engine()

    async def use() -> tuple[int, ...]:
        return (await found.generate((3, 4), Sampling(max_new_tokens=5, seed=1))).tokens

    async def leave_behind() -> None:
        call = asyncio.create_task(found.generate((3, 4), Sampling(max_new_tokens=60)))
        while found.stats().sampled_tokens == 0:
            await asyncio.sleep(0)
        assert not call.done()

    first = asyncio.run(use())
    found.stats()
    asyncio.run(leave_behind())
    assert asyncio.run(use()) == first
    assert found.stats().running == found.stats().waiting == 0
    asyncio.run(found.close())


def test_a_second_event_loop_beside_the_first_is_refused() -> None:
    found = engine()

    async def outer() -> None:
        await found.drain()

        def elsewhere() -> None:
            with pytest.raises(EngineError, match="another event loop"):
                asyncio.run(found.generate((1, 2), Sampling(max_new_tokens=1)))

        await asyncio.to_thread(elsewhere)
        await found.close()

    asyncio.run(outer())


def test_the_threads_end_with_close_and_leave_the_callers_thread_number_alone() -> None:
    before = torch.get_num_threads()

    async def use() -> None:
        found = engine(threads=before + 1)
        await found.generate((1, 2), Sampling(max_new_tokens=2))
        assert any(t.name.startswith("parity-decode") for t in threading.enumerate())
        await found.close()

    asyncio.run(use())
    assert torch.get_num_threads() == before
    assert not any(t.name.startswith("parity-") for t in threading.enumerate())


def test_an_engine_that_never_ran_can_be_closed_twice() -> None:
    async def close() -> None:
        found = engine()
        await found.close()
        await found.close()
        with pytest.raises(EngineError, match="closed"):
            await found.pause()

    asyncio.run(close())


def test_requests_without_a_seed_depend_on_the_engines_seed_and_their_order() -> None:
    async def use() -> list[tuple[int, ...]]:
        found = engine()
        results = [await after_rounds(found, 0) for _ in range(12)]
        await found.close()
        return results

    first = asyncio.run(use())
    assert first == asyncio.run(use())
    assert len(set(first)) > 6
