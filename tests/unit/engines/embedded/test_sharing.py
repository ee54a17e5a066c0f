"""Siblings that share rows of the forward pass get what each would get in a row of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.cache_utils import DynamicCache

from parity.engines.embedded.decoders.decoder import named_tensors
from parity.engines.embedded.decoders.lean import LeanDecoder
from parity.engines.embedded.request import Request
from parity.engines.embedded.sampler import uniforms
from parity.engines.embedded.scheduler import Scheduler
from parity.types import Completion, Sampling

VOCABULARY = 6
PROMPTS = ((1,), (1, 2), (5, 4, 3, 2, 1, 0, 1, 2, 3))
Prompt = tuple[int, ...]


def small_model(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


@dataclass
class Stage:
    """A decoder, and the model by parity of the version that it decodes with."""

    decoder: LeanDecoder
    models: tuple[PreTrainedModel, PreTrainedModel]

    def scheduler(
        self, *, max_concurrent: int = 64, shares_histories: bool = True, eos: Sequence[int] = ()
    ) -> Scheduler:
        found = Scheduler(
            self.decoder,
            max_concurrent=max_concurrent,
            prefill_tokens=16,
            eos_token_ids=frozenset(eos),
            decode_text=lambda tokens: "".join(chr(97 + token) for token in tokens),
            version=0,
            shares_histories=shares_histories,
        )
        found.interrupt()  # one token a step
        return found


@pytest.fixture(scope="module")
def stage() -> Stage:
    models = small_model(0), small_model(1)
    decoder = LeanDecoder(
        models[0], dtype=torch.float32, device=torch.device("cpu"), max_length=128
    )
    tensors = named_tensors(models[1])
    with torch.no_grad():
        for name, destination in decoder.staged().items():
            destination.copy_(tensors[name].reshape(destination.shape))
    return Stage(decoder, models)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def logits_behind(stage: Stage, prompt: Prompt, completion: Completion) -> torch.Tensor:
    """The models' own logits [answer, V], each token computed under the version it had."""
    versions = completion.versions
    assert completion.prompt_version == versions[0]
    inputs = [(token, completion.prompt_version) for token in prompt]
    inputs += zip(completion.tokens[:-1], versions[1:], strict=True)
    cache = DynamicCache(config=stage.models[0].config)
    found: list[torch.Tensor] = []
    start = 0
    while start < len(inputs):
        version = inputs[start][1]
        stop = next((n for n in range(start, len(inputs)) if inputs[n][1] != version), len(inputs))
        ids = torch.tensor([[token for token, _ in inputs[start:stop]]])
        places = torch.arange(start, stop).unsqueeze(0)
        model = stage.models[version % 2]
        out = model(input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True)
        found.append(out.logits[0].double())
        start = stop
    return torch.cat(found)[len(prompt) - 1 :]


def check(stage: Stage, request: Request, completion: Completion) -> None:
    """Each token is the one at the request's own noise, with the model's own log-prob."""
    count, sampling = len(completion.tokens), request.sampling
    if count == 0:
        return
    logits = logits_behind(stage, request.tokens, completion)
    scores = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    ids = torch.tensor(completion.tokens).unsqueeze(-1)
    expected = scores.gather(-1, ids).squeeze(-1)
    found = torch.tensor(completion.logprobs, dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)
    if sampling.temperature == 0.0 or sampling.top_k == 1 or sampling.top_p < 1e-3:
        assert (scores.max(dim=-1).values - expected < 1e-4).all()
        return
    noise = torch.from_numpy(uniforms(np.full(count, request.seed, np.uint64), np.arange(count)))
    edges = scores.exp().cumsum(-1)
    above = edges.gather(-1, ids).squeeze(-1)
    below = above - expected.exp()
    assert ((below - 1e-5 <= noise) & (noise <= above + 1e-5)).all()


def distinct_rows(done: dict[Request, Completion]) -> int:
    """Rows of all decoding passes if everything started together: one per distinct history."""
    return len(
        {
            (request.tokens, completion.tokens[:depth])
            for request, completion in done.items()
            for depth in range(1, len(completion.tokens))
        }
    )


def finish(found: Scheduler, requests: Sequence[Request]) -> dict[Request, Completion]:
    done = found.step(requests, set())
    while found.has_work:
        done += found.step([], set())
    assert len(done) == len(requests)
    return {item.request: item.completion for item in done}


def siblings(temperature: float, *, count: int = 30, tokens: int = 12) -> list[Request]:
    return [
        Request(
            f"r{n}",
            PROMPTS[n % 3],
            Sampling(max_new_tokens=tokens - n % 4, temperature=temperature),
            seed=n,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.15, 0.5, 1.0, 6.0])
def test_one_row_is_decoded_for_every_distinct_history(stage: Stage, temperature: float) -> None:
    found = stage.scheduler()
    requests = siblings(temperature)
    done = finish(found, requests)
    assert found.decoded_rows == distinct_rows(done)
    assert found.prefilled_tokens == sum(map(len, PROMPTS))
    for request, completion in done.items():
        check(stage, request, completion)
    alone = stage.scheduler(shares_histories=False)
    apart = finish(alone, requests)
    assert alone.decoded_rows == sum(len(c.tokens) - 1 for c in apart.values())
    if temperature <= 0.15:  # peaked: rounding changes no draw
        for request in requests:
            assert done[request].tokens == apart[request].tokens
            assert done[request].logprobs == pytest.approx(apart[request].logprobs, abs=5e-5)
    if temperature == 0.0:
        assert found.decoded_rows == 11 * len(PROMPTS)


def test_riders_of_one_lane_may_be_sampled_and_ended_differently(stage: Stage) -> None:
    prompt = PROMPTS[1]
    greedy = finish(
        stage.scheduler(), [Request("g", prompt, Sampling(max_new_tokens=14, temperature=0.0), 0)]
    )
    (path,) = (completion.tokens for completion in greedy.values())
    text = "".join(chr(97 + token) for token in path)
    samplings = [
        Sampling(max_new_tokens=14, temperature=0.0),
        Sampling(max_new_tokens=5, temperature=0.0),
        Sampling(max_new_tokens=14, temperature=0.0, stop=(text[2:5],)),
        Sampling(max_new_tokens=14, temperature=0.0, stop_token_ids=(path[3],)),
        Sampling(max_new_tokens=14, temperature=9.0, top_k=1),
        Sampling(max_new_tokens=14, temperature=1.0, top_p=1e-6),
    ]
    found = stage.scheduler()
    requests = [Request(f"r{n}", prompt, s, seed=n) for n, s in enumerate(samplings)]
    done = finish(found, requests)
    ends = [len(done[request].tokens) for request in requests]
    cut = text.index(text[2:5]) + 3
    assert ends == [14, 5, cut, path.index(path[3]) + 1, 14, 14]
    for request in requests:
        assert done[request].tokens == path[: len(done[request].tokens)]
        check(stage, request, done[request])
    assert found.decoded_rows == 13


def test_ending_any_rider_leaves_the_others_on_their_lane(stage: Stage) -> None:
    sampling = Sampling(max_new_tokens=10, temperature=0.0)
    requests = [Request(f"r{n}", PROMPTS[2], sampling, seed=n) for n in range(4)]
    for first in range(4):
        found = stage.scheduler()
        done = found.step(requests, set())
        for victim in (first, (first + 2) % 4):
            done += found.step([], {f"r{victim}"})
        while found.has_work:
            done += found.step([], set())
        by_id = {item.request.request_id: item.completion for item in done}
        lengths = [len(by_id[f"r{n}"].tokens) for n in range(4)]
        assert sorted(lengths) == [2, 2, 10, 10]
        assert lengths[first] == 2
        longest = by_id[f"r{lengths.index(10)}"].tokens
        assert all(c.tokens == longest[: len(c.tokens)] for c in by_id.values())
        assert found.decoded_rows == 9


@dataclass(frozen=True)
class Arrival:
    """A request, and the step it comes in."""

    step: int
    prompt: Prompt
    sampling: Sampling
    abort_step: int | None


arrivals = st.builds(
    Arrival,
    step=st.integers(0, 8),
    prompt=st.sampled_from(PROMPTS),
    sampling=st.builds(
        Sampling,
        max_new_tokens=st.integers(1, 14),
        temperature=st.sampled_from([0.0, 0.1, 0.3, 1.0, 5.0]),
        stop_token_ids=st.sampled_from([(), (0,), (3,)]),
        stop=st.sampled_from([(), ("ab",)]),
    ),
    abort_step=st.one_of(st.none(), st.integers(0, 12)),
)


@given(
    coming=st.lists(arrivals, min_size=1, max_size=14),
    max_concurrent=st.integers(1, 10),
    swaps=st.sets(st.integers(1, 14), max_size=2),
)
@settings(max_examples=25, deadline=None)
def test_answers_are_the_models_own_whatever_comes_forks_ends_and_changes(
    stage: Stage, coming: list[Arrival], max_concurrent: int, swaps: set[int]
) -> None:
    with torch.inference_mode():
        found = stage.scheduler(max_concurrent=max_concurrent)
        requests = [Request(f"r{n}", a.prompt, a.sampling, n) for n, a in enumerate(coming)]
        done: dict[Request, Completion] = {}
        step = 0
        while len(done) < len(requests):
            new = [r for r, a in zip(requests, coming, strict=True) if a.step == step]
            if step in swaps:
                found.serve(found.version + 1)
            aborted = {f"r{n}" for n, a in enumerate(coming) if a.abort_step == step}
            for item in found.step(new, aborted):
                done[item.request] = item.completion
            assert found.num_running <= max_concurrent
            step += 1
            assert step < 300
        assert not found.has_work
        for request, completion in done.items():
            check(stage, request, completion)
        check_nothing_leaked(stage, found, max_concurrent)
        if found.version % 2:
            found.serve(found.version + 1)  # the next example begins with the first model


def check_nothing_leaked(stage: Stage, found: Scheduler, max_concurrent: int) -> None:
    """As many different requests as may run find room beside each other, and no more memory."""
    before = found.decoded_rows
    distinct = [
        Request(f"last{n}", (n % 6, n // 6, 3), Sampling(max_new_tokens=3), n)
        for n in range(max_concurrent)
    ]
    done = finish(found, distinct)
    assert found.decoded_rows - before == 2 * max_concurrent
    for request, completion in done.items():
        check(stage, request, completion)
    token_bytes = 2 * 2 * 8 * 4  # layers, keys and values, head_dim, float32
    assert found.cache_size_bytes <= max_concurrent * 64 * token_bytes


def test_two_runs_agree_bit_for_bit(stage: Stage) -> None:
    first = finish(stage.scheduler(max_concurrent=7), requests := siblings(0.7))
    second = finish(stage.scheduler(max_concurrent=7), requests)
    assert first == second


def test_a_shared_row_needs_memory_for_no_more_than_the_requests(stage: Stage) -> None:
    sharing, apart = stage.scheduler(), stage.scheduler(shares_histories=False)
    for found in (sharing, apart):
        finish(found, siblings(6.0, count=12))
    assert sharing.cache_size_bytes == apart.cache_size_bytes


def hot(name: str, prompt: Prompt, count: int, seed: int) -> Request:
    return Request(name, prompt, Sampling(max_new_tokens=count, temperature=6.0), seed)


def parting_seeds() -> tuple[int, int]:
    """Seeds that draw different first tokens wherever all tokens are about equally likely."""
    first = uniforms(np.arange(50, dtype=np.uint64), np.zeros(50, np.int64))
    return int(first.argmin()), int(first.argmax())


def test_a_prompt_is_not_looked_for_where_a_fork_overwrote_it(stage: Stage) -> None:
    found = stage.scheduler(max_concurrent=3)
    low, high = parting_seeds()
    long, short = PROMPTS[2], PROMPTS[1]
    found.step([hot("a", long, 9, low), hot("b", long, 9, high), hot("c", short, 1, 0)], set())
    found.step([], set())  # a and b part, and the free lane is the one of c
    assert found.decoded_rows == 2
    again = hot("d", short, 5, 1)
    done = {item.request: item.completion for item in found.step([again], set())}
    while found.has_work:
        done |= {item.request: item.completion for item in found.step([], set())}
    assert found.prefilled_tokens == len(long) + 2 * len(short)
    check(stage, again, done[again])


@pytest.mark.parametrize("is_low_first", [False, True])
def test_a_prompt_lives_on_in_the_forks_of_its_lane(stage: Stage, *, is_low_first: bool) -> None:
    found = stage.scheduler(max_concurrent=2)
    first, second = parting_seeds()[:: 1 if is_low_first else -1]
    prompt, other = PROMPTS[2], PROMPTS[0]
    done = found.step([hot("a", prompt, 2, first), hot("b", prompt, 30, second)], set())
    assert [item.request.request_id for item in done] == ["a"]
    done += found.step([hot("c", other, 2, 0)], set())  # overwrites the lane that a left
    again = hot("d", prompt, 6, 1)
    done += found.step([again], set())
    while found.has_work:
        done += found.step([], set())
    assert found.prefilled_tokens == len(prompt) + len(other)
    for item in done:
        check(stage, item.request, item.completion)
