"""What the scheduler does between two tokens: admission, reuse, arrangement, endings."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from parity.engines.embedded.decoders.lean import LeanDecoder
from parity.engines.embedded.request import Finished, Request
from parity.engines.embedded.scheduler import Scheduler
from parity.types import Sampling

VOCABULARY = 40


@pytest.fixture(scope="module")
def decoder() -> LeanDecoder:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    return LeanDecoder(model, dtype=torch.float32, device=torch.device("cpu"), max_length=4096)


def scheduler(
    decoder: LeanDecoder, *, max_concurrent: int = 8, prefill_tokens: int = 4096
) -> Scheduler:
    return Scheduler(
        decoder,
        max_concurrent=max_concurrent,
        prefill_tokens=prefill_tokens,
        eos_token_ids=frozenset(),
        decode_text=None,
        version=0,
    )


def request(number: int, tokens: tuple[int, ...], count: int) -> Request:
    return Request(f"r{number}", tokens, Sampling(max_new_tokens=count), seed=number)


def finish(found: Scheduler, new: list[Request]) -> dict[str, Finished]:
    with torch.inference_mode():
        done = found.step(new, set())
        while found.has_work:
            done += found.step([], set())
    return {item.request.request_id: item for item in done}


def test_siblings_are_prefilled_once(decoder: LeanDecoder) -> None:
    found = scheduler(decoder)
    finish(found, [request(n, (1, 2, 3), 5) for n in range(8)])
    assert found.prefilled_tokens == 3
    assert found.sampled_tokens == 40


def test_siblings_that_wait_for_a_slot_copy_the_prompt_that_is_there(decoder: LeanDecoder) -> None:
    found = scheduler(decoder, max_concurrent=2)
    requests = [request(n, (1, 2, 3) if n < 5 else (7, 8), 3 + n) for n in range(8)]
    done = finish(found, requests)
    assert found.prefilled_tokens == 5
    alone = scheduler(decoder, max_concurrent=1)
    for item in requests:
        expected = finish(alone, [item])[item.request_id].completion
        alone.clear()
        assert done[item.request_id].completion.tokens == expected.tokens


def test_a_reused_prompt_gives_the_same_bits(decoder: LeanDecoder) -> None:
    found = scheduler(decoder)
    first = finish(found, [request(0, (4, 5, 6, 7), 9)])["r0"].completion
    second = finish(found, [request(0, (4, 5, 6, 7), 9)])["r0"].completion
    assert found.prefilled_tokens == 4
    assert first == second


def test_prompts_are_computed_again_under_new_weights(decoder: LeanDecoder) -> None:
    found = scheduler(decoder)
    finish(found, [request(0, (4, 5), 2)])
    for name, destination in decoder.staged().items():
        assert destination.numel() > 0, name
    decoder.swap()  # serve() swaps back, so that the module's decoder keeps its weights
    found.serve(1)
    done = finish(found, [request(1, (4, 5), 2)])
    assert found.prefilled_tokens == 4
    assert done["r1"].completion.prompt_version == 1
    assert done["r1"].completion.versions == (1, 1)


def test_long_and_short_requests_side_by_side_get_what_they_get_alone(
    decoder: LeanDecoder,
) -> None:
    found = scheduler(decoder, max_concurrent=24)
    requests = [request(n, (n, n + 1), 5 + 3 * (n % 5)) for n in range(20)]
    requests.insert(9, request(90, tuple(n % VOCABULARY for n in range(700)), 30))
    requests.insert(15, request(91, tuple(n * 3 % VOCABULARY for n in range(300)), 20))
    done = finish(found, requests)
    for item in requests:
        expected = finish(scheduler(decoder), [item])[item.request_id].completion
        completion = done[item.request_id].completion
        assert completion.tokens == expected.tokens
        assert completion.logprobs == pytest.approx(expected.logprobs, abs=2e-5)


def test_a_step_ends_with_the_first_finished_request_or_the_interruption(
    decoder: LeanDecoder,
) -> None:
    found = scheduler(decoder)
    with torch.inference_mode():
        done = found.step([request(0, (1, 2), 4), request(1, (1, 2), 400)], set())
        assert [item.request.request_id for item in done] == ["r0"]
        assert found.sampled_tokens == 8
        assert found.step([], set()) == []
        in_a_row = found.sampled_tokens - 8
        assert in_a_row > 1
        original = decoder.decode

        def decode_and_interrupt(*args: object, **kwargs: object) -> torch.Tensor:
            found.interrupt()
            return original(*args, **kwargs)  # pyright: ignore[reportArgumentType]

        decoder.decode = decode_and_interrupt  # pyright: ignore[reportAttributeAccessIssue]
        try:
            found.step([], set())
        finally:
            del decoder.decode
        assert found.sampled_tokens == 8 + in_a_row + 1


def test_without_decode_a_step_only_sees_to_aborts(decoder: LeanDecoder) -> None:
    found = scheduler(decoder, max_concurrent=1)
    with torch.inference_mode():
        found.step([request(0, (1, 2), 50), request(1, (3, 4), 50)], set())
        before = found.sampled_tokens
        done = found.step([], {"r0", "r1", "r9"}, decode=False)
    assert {item.request.request_id for item in done} == {"r0", "r1"}
    assert {item.completion.finish_reason for item in done} == {"abort"}
    assert found.sampled_tokens == before
    assert not found.has_work


def test_the_cache_grows_with_what_is_needed_not_with_what_is_allowed(
    decoder: LeanDecoder,
) -> None:
    found = scheduler(decoder, max_concurrent=1000)
    finish(found, [request(n, (1, 2, 3), 20) for n in range(4)])
    token_bytes = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head_dim, float32
    assert found.cache_size_bytes <= 4 * 48 * token_bytes
    found.free()
    assert found.cache_size_bytes == 0
