"""What every engine must do, checked on tiny random models over the engines that run here."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.cache_utils import DynamicCache

from parity.engines import ENGINES
from parity.engines.config import EmbeddedEngineConfig, ForwardPath
from parity.engines.embedded.engine import EmbeddedEngine
from parity.engines.engine import Engine
from parity.engines.router import Router
from parity.errors import EngineError, TransferError
from parity.types import Completion, Sampling
from parity.weights.manifest import Manifest

VOCABULARY = 48
MAX_LENGTH = 64
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def llama() -> PreTrainedModel:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    return LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=scaling))


def qwen2() -> PreTrainedModel:
    model = Qwen2ForCausalLM(Qwen2Config(**SMALL))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)  # zero by default, which would hide them
    return model


def qwen3_tied() -> PreTrainedModel:
    model = Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=16, tie_word_embeddings=True))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)  # one by default, which would hide them
    return model


def mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None))


def mistral_window() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SMALL, sliding_window=6))


def gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=128,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return GPT2LMHeadModel(config)


@dataclass(frozen=True)
class Case:
    """One engine on one model."""

    engine: str
    variant: ForwardPath
    make_model: Callable[[], PreTrainedModel]
    routed: int = 0  # replicas behind a router; 0: the engine alone
    is_remote: bool = False  # in a process of its own, an actor of Ray

    @property
    def name(self) -> str:
        routed = f"-routed-{self.routed}" if self.routed else ""
        remote = "-remote" if self.is_remote else ""
        return f"{self.engine}-{self.variant}-{self.make_model.__name__}{routed}{remote}"

    def model(self, seed: int = 0) -> PreTrainedModel:
        torch.manual_seed(seed)
        return self.make_model().eval()

    def build(
        self,
        model: PreTrainedModel,
        *,
        max_concurrent: int = 16,
        prefill_tokens: int = 64,
        eos: Sequence[int] = (),
    ) -> Engine:
        config = EmbeddedEngineConfig(
            forward=self.variant, max_concurrent=max_concurrent, prefill_tokens=prefill_tokens
        )
        if self.is_remote:
            from ray_actors import OpenModel

            return ACTORS[0].engine(OpenModel(model, config, MAX_LENGTH, tuple(eos)))
        engines = [
            EmbeddedEngine(
                model,
                config=config,
                max_length=MAX_LENGTH,
                eos_token_ids=frozenset(eos),
                decode=text_of,
                device=torch.device("cpu"),
                threads=1,
            )
            for _ in range(self.routed or 1)
        ]
        assert {engine.forward for engine in engines} == {self.variant}
        if not self.routed:
            return engines[0]
        return Router({f"replica-{n}": engine for n, engine in enumerate(engines)})


CASES = [
    Case("embedded", "lean", llama),
    Case("embedded", "lean", qwen2),
    Case("embedded", "lean", qwen3_tied),
    Case("embedded", "lean", mistral),
    Case("embedded", "generic", qwen3_tied),
    Case("embedded", "generic", mistral_window),
    Case("embedded", "generic", gpt2),
    Case("embedded", "lean", llama, routed=1),
    Case("embedded", "lean", qwen3_tied, routed=2),
]
REMOTE = Case("embedded", "lean", qwen3_tied, is_remote=True)
every_engine = pytest.mark.parametrize(
    "case",
    [*CASES, pytest.param(REMOTE, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
    ids=lambda case: case.name,
)
ACTORS: list[Any] = []  # those of `actors`, while they are there


@pytest.fixture(scope="module")
def actors(tmp_path_factory: pytest.TempPathFactory):
    """Processes for the cases that are remote, one set for all of them."""
    pytest.importorskip("ray")
    from ray_actors import Actors

    ACTORS.append(Actors(tmp_path_factory.mktemp("actors")))
    yield
    ACTORS.pop().close()


@pytest.fixture(autouse=True)
def processes(request: pytest.FixtureRequest) -> None:
    if "case" in request.fixturenames and request.getfixturevalue("case").is_remote:
        request.getfixturevalue("actors")


def text_of(tokens: Sequence[int]) -> str:
    """Tokens as letters; the upper half of the vocabulary is written with two."""
    return "".join(chr(97 + t) if t < 24 else chr(65 + t - 24) + "." for t in tokens)


@asynccontextmanager
async def running(engine: Engine) -> AsyncGenerator[Engine, None]:
    try:
        yield engine
    finally:
        await engine.close()


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCABULARY - 1, (length,), generator=generator).tolist())


def run(
    case: Case,
    model: PreTrainedModel,
    requests: Sequence[tuple[tuple[int, ...], Sampling]],
    *,
    max_concurrent: int = 16,
    prefill_tokens: int = 64,
    eos: Sequence[int] = (),
) -> list[Completion]:
    async def generate() -> list[Completion]:
        engine = case.build(
            model, max_concurrent=max_concurrent, prefill_tokens=prefill_tokens, eos=eos
        )
        async with running(engine):
            return await asyncio.gather(*(engine.generate(t, s) for t, s in requests))

    return asyncio.run(generate())


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel, tokens: tuple[int, ...], answer: tuple[int, ...], temperature: float
) -> torch.Tensor:
    """Log-probs of the answer's tokens by one forward pass over the whole sequence."""
    logits = model(input_ids=torch.tensor([tokens + answer])).logits[0, len(tokens) - 1 : -1]
    scores = torch.log_softmax(logits.double() / (temperature or 1.0), dim=-1)
    return scores.gather(-1, torch.tensor(answer).unsqueeze(-1)).squeeze(-1)


async def until_sampled(engine: Engine, count: int) -> None:
    """Let the loop run until the engine has sampled `count` tokens."""
    async with asyncio.timeout(30):
        while engine.stats().sampled_tokens < count:
            await asyncio.sleep(0)


async def publish(engine: Engine, model: PreTrainedModel, version: int) -> None:
    tensors, aliases = state_of(model)
    await engine.begin_load(Manifest.of(version, tensors, aliases))
    await engine.load(tensors[:3])
    await engine.load(tensors[3:])
    await engine.commit_load(version)


def state_of(
    model: PreTrainedModel,
) -> tuple[list[tuple[str, torch.Tensor]], tuple[tuple[str, str], ...]]:
    """Each stored tensor once, and which names are the same storage."""
    first: dict[int, str] = {}
    tensors: list[tuple[str, torch.Tensor]] = []
    aliases: list[tuple[str, str]] = []
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in first:
            aliases.append((name, first[tensor.data_ptr()]))
        else:
            first[tensor.data_ptr()] = name
            tensors.append((name, tensor))
    return tensors, tuple(aliases)


def changed(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with other weights."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return other


def test_every_registered_engine_is_covered_here() -> None:
    assert set(ENGINES.names()) == {case.engine for case in CASES}
    assert ENGINES.load("embedded") is EmbeddedEngine


@every_engine
def test_greedy_equals_transformers_greedy(case: Case) -> None:
    model = case.model()
    prompts = [prompt(length, seed=length) for length in (1, 2, 7, 13)]
    found = run(case, model, [(p, Sampling(max_new_tokens=20, temperature=0.0)) for p in prompts])
    for tokens, completion in zip(prompts, found, strict=True):
        ids = torch.tensor([tokens])
        expected = model.generate(  # pyright: ignore[reportCallIssue]
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20
        )
        assert completion.tokens == tuple(expected[0, len(tokens) :].tolist())


@every_engine
def test_logprobs_equal_a_plain_forward_pass(case: Case) -> None:
    model = case.model()
    requests = [
        (prompt(3, 1), Sampling(max_new_tokens=30)),
        (prompt(3, 1), Sampling(max_new_tokens=12, temperature=0.6)),
        (prompt(12, 2), Sampling(max_new_tokens=25, temperature=1.4, top_p=0.8)),
        (prompt(1, 3), Sampling(max_new_tokens=9, top_k=4)),
        (prompt(9, 4), Sampling(max_new_tokens=17, temperature=0.0)),
    ]
    for (tokens, sampling), completion in zip(requests, run(case, model, requests), strict=True):
        assert len(completion.tokens) == sampling.max_new_tokens
        expected = plain_logprobs(model, tokens, completion.tokens, sampling.temperature)
        found = torch.tensor(completion.logprobs, dtype=torch.float64)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@every_engine
def test_more_requests_than_slots_are_all_served_exactly(case: Case) -> None:
    model = case.model()
    requests = [
        (prompt(1 + n // 4 * 3, n // 4), Sampling(max_new_tokens=1 + n * 5 % 13, seed=n))
        for n in range(16)
    ]
    found = run(case, model, requests, max_concurrent=3, prefill_tokens=8)
    for (tokens, sampling), completion in zip(requests, found, strict=True):
        assert len(completion.tokens) == sampling.max_new_tokens
        expected = plain_logprobs(model, tokens, completion.tokens, 1.0)
        found_logprobs = torch.tensor(completion.logprobs, dtype=torch.float64)
        torch.testing.assert_close(found_logprobs, expected, atol=2e-5, rtol=0)


@every_engine
def test_a_prompt_longer_than_one_prefill_pass_is_taken_in_parts(case: Case) -> None:
    model, tokens = case.model(), prompt(29)
    (completion,) = run(case, model, [(tokens, Sampling(max_new_tokens=5))], prefill_tokens=8)
    expected = plain_logprobs(model, tokens, completion.tokens, 1.0)
    found = torch.tensor(completion.logprobs, dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


@every_engine
@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(max_new_tokens=1), VOCABULARY),
        (Sampling(max_new_tokens=1, temperature=0.5), VOCABULARY),
        (Sampling(max_new_tokens=1, top_k=5), 5),
        (Sampling(max_new_tokens=1, top_p=0.6), None),
    ],
    ids=["plain", "temperature", "top_k", "top_p"],
)
def test_sampling_follows_the_distribution(
    case: Case, sampling: Sampling, allowed: int | None
) -> None:
    model, tokens, draws = case.model(), prompt(4), 1500
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, -1].double()
    expected = torch.softmax(logits / sampling.temperature, dim=-1)
    values, order = expected.sort(descending=True)
    if allowed is None:
        allowed = int((values.cumsum(0) - values < sampling.top_p).sum())
    kept = torch.zeros_like(expected)
    kept[order[:allowed]] = values[:allowed] / values[:allowed].sum()

    requests = [(tokens, copy_with_seed(sampling, seed)) for seed in range(draws)]
    completions = run(case, model, requests, max_concurrent=500)
    counts = torch.zeros(VOCABULARY, dtype=torch.float64)
    for completion in completions:
        counts[completion.tokens[0]] += 1
    assert counts[kept == 0].sum() == 0
    common = kept * draws >= 5
    degrees = int(common.sum()) - 1
    chi_square = ((counts - kept * draws) ** 2 / (kept * draws))[common].sum()
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5 + 5


def copy_with_seed(sampling: Sampling, seed: int) -> Sampling:
    return Sampling(
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=seed,
    )


@every_engine
def test_a_seed_gives_the_same_answer_whatever_is_decoded_beside_it(case: Case) -> None:
    model, tokens = case.model(), prompt(5)
    wanted = (tokens, Sampling(max_new_tokens=24, seed=17))
    (alone,) = run(case, model, [wanted])
    others = [(prompt(2 + n, n), Sampling(max_new_tokens=3 + 2 * n, seed=n)) for n in range(9)]
    beside = run(case, model, [*others[:4], wanted, *others[4:]], max_concurrent=6)
    assert beside[4].tokens == alone.tokens
    other_seed = (tokens, Sampling(max_new_tokens=24, seed=18))
    assert run(case, model, [other_seed])[0].tokens != alone.tokens


@every_engine
def test_two_runs_of_one_program_agree_bit_for_bit(case: Case) -> None:
    model = case.model()
    requests = [(prompt(2 + n % 3, n % 3), Sampling(max_new_tokens=4 + n)) for n in range(12)]
    first = run(case, model, requests, max_concurrent=5)
    assert run(case, model, requests, max_concurrent=5) == first
    assert len({completion.tokens[:4] for completion in first}) == len(first)


@every_engine
def test_an_answer_ends_with_its_stop_token_and_never_passes_its_budget(case: Case) -> None:
    model, tokens = case.model(), prompt(4)
    (free,) = run(case, model, [(tokens, Sampling(max_new_tokens=30, seed=3))])
    assert free.finish_reason == "length"
    assert len(free.tokens) == 30
    stop = free.tokens[9]
    cut = free.tokens.index(stop) + 1
    unused = next(token for token in range(VOCABULARY) if token not in free.tokens)
    by_id = (tokens, Sampling(max_new_tokens=30, seed=3, stop_token_ids=(unused, stop)))
    other = (tokens, Sampling(max_new_tokens=30, seed=3, stop_token_ids=(unused,)))
    stopped, unstopped = run(case, model, [by_id, other])
    assert stopped.tokens == free.tokens[:cut]
    assert stopped.finish_reason == "stop"
    assert unstopped.tokens == free.tokens
    plain = (tokens, Sampling(max_new_tokens=30, seed=3))
    (by_eos,) = run(case, model, [plain], eos=(stop, 10**6))
    assert by_eos.tokens == free.tokens[:cut]
    assert by_eos.finish_reason == "stop"


@every_engine
def test_a_stop_string_ends_the_answer_after_the_token_that_completes_it(case: Case) -> None:
    model, tokens = case.model(), prompt(4)
    (free,) = run(case, model, [(tokens, Sampling(max_new_tokens=30, seed=5))])
    target = text_of(free.tokens[11:13])
    cut = next(n for n in range(1, 31) if target in text_of(free.tokens[:n]))
    stopped_at = Sampling(max_new_tokens=30, seed=5, stop=("never this", target))
    (stopped,) = run(case, model, [(tokens, stopped_at)])
    assert stopped.tokens == free.tokens[:cut]
    assert stopped.finish_reason == "stop"


@every_engine
def test_requests_that_cannot_be_served_are_refused_in_one_sentence(case: Case) -> None:
    async def refuse() -> None:
        async with running(case.build(case.model())) as engine:
            with pytest.raises(EngineError, match="60 tokens and max_new_tokens is 5"):
                await engine.generate(prompt(60), Sampling(max_new_tokens=5))
            with pytest.raises(EngineError, match=f"one request may have {MAX_LENGTH}"):
                await engine.generate(prompt(60), Sampling(max_new_tokens=5))
            with pytest.raises(EngineError, match="empty"):
                await engine.generate((), Sampling(max_new_tokens=5))
            with pytest.raises(EngineError, match="0 to 47"):
                await engine.generate((1, VOCABULARY), Sampling(max_new_tokens=5))
            for bad in (
                Sampling(max_new_tokens=0),
                Sampling(max_new_tokens=1, temperature=-1.0),
                Sampling(max_new_tokens=1, temperature=float("nan")),
                Sampling(max_new_tokens=1, top_p=0.0),
                Sampling(max_new_tokens=1, top_k=-1),
                Sampling(max_new_tokens=1, stop=("",)),
            ):
                with pytest.raises(EngineError):
                    await engine.generate((1, 2), bad)
            fits = await engine.generate(prompt(60), Sampling(max_new_tokens=4))
            assert len(fits.tokens) == 4

    asyncio.run(refuse())


@every_engine
def test_abort_ends_running_and_waiting_requests_with_what_they_have(case: Case) -> None:
    async def abort() -> None:
        async with running(case.build(case.model(), max_concurrent=2)) as engine:
            long = Sampling(max_new_tokens=50, seed=1)
            calls = [
                asyncio.create_task(engine.generate(prompt(4), long, request_id=f"r{n}"))
                for n in range(3)
            ]
            await until_sampled(engine, 6)
            await engine.pause()
            await engine.abort("r0")
            await engine.abort("r2")
            await engine.abort("unknown")
            aborted, waiting = await calls[0], await calls[2]
            await engine.resume()
            finished = await calls[1]
            assert aborted.finish_reason == waiting.finish_reason == "abort"
            assert 0 < len(aborted.tokens) < 50
            assert aborted.tokens == finished.tokens[: len(aborted.tokens)]
            assert len(aborted.tokens) == len(aborted.logprobs) == len(aborted.versions)
            assert waiting.tokens == ()
            assert len(finished.tokens) == 50

    asyncio.run(abort())


@every_engine
def test_nothing_is_decoded_between_pause_and_resume(case: Case) -> None:
    async def pause() -> None:
        async with running(case.build(case.model())) as engine:
            sampling = Sampling(max_new_tokens=40, seed=2)
            first = asyncio.create_task(engine.generate(prompt(4), sampling))
            await until_sampled(engine, 3)
            await engine.pause()
            at_pause = engine.stats().sampled_tokens
            second = asyncio.create_task(engine.generate(prompt(4), sampling))
            for _ in range(50):
                await asyncio.sleep(0)
            assert engine.stats().sampled_tokens == at_pause
            assert not first.done()
            assert not second.done()
            await engine.resume()
            assert (await first).tokens == (await second).tokens

    asyncio.run(pause())


@every_engine
def test_cancelling_a_call_frees_its_slot(case: Case) -> None:
    async def cancel() -> None:
        async with running(case.build(case.model(), max_concurrent=1)) as engine:
            long = asyncio.create_task(engine.generate(prompt(4), Sampling(max_new_tokens=55)))
            next_in_line = asyncio.create_task(
                engine.generate(prompt(5), Sampling(max_new_tokens=3))
            )
            await until_sampled(engine, 2)
            long.cancel()
            with pytest.raises(asyncio.CancelledError):
                await long
            async with asyncio.timeout(30):
                assert len((await next_in_line).tokens) == 3
                await engine.drain()
            assert engine.stats().running == engine.stats().waiting == 0
            assert engine.stats().sampled_tokens < 55

    asyncio.run(cancel())


@every_engine
def test_new_weights_take_over_between_two_tokens(case: Case) -> None:
    old = case.model()
    new = changed(old)

    async def swap() -> tuple[Completion, Completion]:
        async with running(case.build(old)) as engine:
            sampling = Sampling(max_new_tokens=40, seed=4)
            call = asyncio.create_task(engine.generate(prompt(5), sampling))
            await until_sampled(engine, 4)
            await publish(engine, new, 3)
            assert engine.version == 3
            later = await engine.generate(prompt(5), sampling)
            return await call, later

    for _ in range(5):  # a machine that looks away for 40 tokens misses the moment
        mixed, later = asyncio.run(swap())
        if 3 in mixed.versions:
            break
    switch = mixed.versions.index(3)
    assert 0 < switch < 40
    assert mixed.versions == (0,) * switch + (3,) * (40 - switch)
    assert mixed.prompt_version == 0
    assert set(later.versions) == {later.prompt_version} == {3}
    found = torch.tensor(mixed.logprobs, dtype=torch.float64)
    before = plain_logprobs(old, prompt(5), mixed.tokens[:switch], 1.0)
    torch.testing.assert_close(found[:switch], before, atol=2e-5, rtol=0)
    after = mixed_logprobs(old, new, prompt(5), mixed.tokens, switch)
    torch.testing.assert_close(found[switch:], after, atol=2e-5, rtol=0)
    later_found = torch.tensor(later.logprobs, dtype=torch.float64)
    fresh = plain_logprobs(new, prompt(5), later.tokens, 1.0)
    torch.testing.assert_close(later_found, fresh, atol=2e-5, rtol=0)


@torch.no_grad()
def mixed_logprobs(
    old: PreTrainedModel,
    new: PreTrainedModel,
    tokens: tuple[int, ...],
    answer: tuple[int, ...],
    switch: int,
) -> torch.Tensor:
    """Log-probs of answer[switch:] where all tokens before answer[switch - 1] have old KV."""
    cache = DynamicCache(config=old.config)
    before = tokens + answer[: switch - 1]
    old(input_ids=torch.tensor([before]), past_key_values=cache, use_cache=True)
    rest = answer[switch - 1 : -1]
    logits = new(
        input_ids=torch.tensor([rest]),
        position_ids=torch.arange(len(before), len(before) + len(rest)).unsqueeze(0),
        past_key_values=cache,
        use_cache=True,
    ).logits[0]
    scores = torch.log_softmax(logits.double(), dim=-1)
    return scores.gather(-1, torch.tensor(answer[switch:]).unsqueeze(-1)).squeeze(-1)


@every_engine
def test_siblings_share_rows_until_their_answers_part(case: Case) -> None:
    model = case.model()
    requests = [
        (prompt(2 + n % 3, n % 3), Sampling(max_new_tokens=6 + n % 2, temperature=0.4, seed=n))
        for n in range(24)
    ]

    async def share() -> tuple[list[Completion], int | None]:
        async with running(case.build(model, max_concurrent=24)) as engine:
            found = await asyncio.gather(*(engine.generate(t, s) for t, s in requests))
            return found, engine.stats().decoded_rows

    found, decoded_rows = asyncio.run(share())
    histories: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for (tokens, sampling), completion in zip(requests, found, strict=True):
        histories |= {(tokens, completion.tokens[:n]) for n in range(1, sampling.max_new_tokens)}
        expected = plain_logprobs(model, tokens, completion.tokens, 0.4)
        found_logprobs = torch.tensor(completion.logprobs, dtype=torch.float64)
        torch.testing.assert_close(found_logprobs, expected, atol=5e-5, rtol=0)
    alone = sum(sampling.max_new_tokens - 1 for _, sampling in requests)
    assert decoded_rows == len(histories) < alone


@every_engine
def test_siblings_on_one_row_go_on_under_new_weights_and_without_the_one_that_is_aborted(
    case: Case,
) -> None:
    old = case.model()
    new = changed(old)

    async def swap() -> tuple[list[Completion], int | None]:
        async with running(case.build(old)) as engine:
            sampling = Sampling(max_new_tokens=40, temperature=0.0)
            calls = [
                asyncio.create_task(engine.generate(prompt(5), sampling, request_id=f"r{n}"))
                for n in range(4)
            ]
            await until_sampled(engine, 12)
            await engine.pause()
            await engine.abort("r0")
            await publish(engine, new, 3)
            await engine.resume()
            return await asyncio.gather(*calls), engine.stats().decoded_rows

    (aborted, *siblings), decoded_rows = asyncio.run(swap())
    assert decoded_rows == 39
    first = siblings[0]
    assert siblings == [first] * 3
    switch = first.versions.index(3)
    assert aborted.finish_reason == "abort"
    assert aborted.tokens == first.tokens[:switch]
    found = torch.tensor(first.logprobs, dtype=torch.float64)
    before = plain_logprobs(old, prompt(5), first.tokens[:switch], 1.0)
    torch.testing.assert_close(found[:switch], before, atol=2e-5, rtol=0)
    after = mixed_logprobs(old, new, prompt(5), first.tokens, switch)
    torch.testing.assert_close(found[switch:], after, atol=2e-5, rtol=0)


@every_engine
def test_published_weights_give_what_an_engine_built_from_them_gives(case: Case) -> None:
    old = case.model()
    new, newer = changed(old), case.model(seed=5)
    request = (prompt(5), Sampling(max_new_tokens=12, seed=4))

    async def publish_twice() -> list[Completion]:
        async with running(case.build(old)) as engine:
            results = [await engine.generate(*request)]
            for version, model in ((1, new), (2, newer)):
                await publish(engine, model, version)
                results.append(await engine.generate(*request))
            return results

    found = asyncio.run(publish_twice())
    for model, completion in zip((old, new, newer), found, strict=True):
        (expected,) = run(case, model, [request])
        assert completion.tokens == expected.tokens
        assert completion.logprobs == expected.logprobs


@every_engine
def test_a_refused_publication_leaves_the_old_weights_bit_identical(case: Case) -> None:
    old = case.model()
    new = changed(old)
    request = (prompt(5), Sampling(max_new_tokens=12, seed=4))
    tensors, aliases = state_of(new)
    manifest = Manifest.of(1, tensors, aliases)

    async def refuse() -> None:
        async with running(case.build(old)) as engine:
            before = await engine.generate(*request)
            await engine.begin_load(manifest)
            await engine.load(tensors[:-1])
            with pytest.raises(TransferError, match=tensors[-1][0]):
                await engine.commit_load(1)
            assert await engine.generate(*request) == before
            await engine.abort_load("a tensor is missing")
            assert await engine.generate(*request) == before

            await engine.begin_load(manifest)
            await engine.load(tensors)
            with pytest.raises(TransferError, match="version 2"):
                await engine.commit_load(2)
            await engine.abort_load("complete, but not wanted")
            assert await engine.generate(*request) == before
            assert engine.version == 0

            await publish(engine, new, 1)
            assert await engine.generate(*request) != before

    asyncio.run(refuse())


@every_engine
def test_publication_calls_out_of_order_and_wrong_tensors_are_refused(case: Case) -> None:
    model = case.model()
    tensors, aliases = state_of(model)
    name, tensor = tensors[0]

    async def misuse() -> None:
        async with running(case.build(model)) as engine:
            with pytest.raises(TransferError, match="before begin_load"):
                await engine.load(tensors)
            with pytest.raises(TransferError, match="before begin_load"):
                await engine.commit_load(1)
            await engine.abort_load("nothing is under way")
            with pytest.raises(TransferError, match="increase"):
                await engine.begin_load(Manifest.of(0, tensors, aliases))
            with pytest.raises(TransferError, match="missing"):
                await engine.begin_load(Manifest.of(1, tensors[1:], aliases))
            with pytest.raises(TransferError, match="unknown"):
                await engine.begin_load(Manifest.of(1, [*tensors, ("extra", tensor)], aliases))
            with pytest.raises(TransferError, match="other shape"):
                wrong = [(name, tensor[:1]), *tensors[1:]]
                await engine.begin_load(Manifest.of(1, wrong, aliases))
            await engine.begin_load(Manifest.of(1, tensors, aliases))
            with pytest.raises(TransferError, match="under way"):
                await engine.begin_load(Manifest.of(2, tensors, aliases))
            with pytest.raises(TransferError, match="announce"):
                await engine.load([("extra", tensor)])
            with pytest.raises(TransferError, match="shape"):
                await engine.load([(name, tensor[:1])])
            await engine.load([(name, tensor)])
            with pytest.raises(TransferError, match="twice"):
                await engine.load([(name, tensor)])
            await engine.abort_load("enough")
            await publish(engine, model, 1)
            assert engine.version == 1

    asyncio.run(misuse())


@every_engine
def test_close_ends_every_request_and_later_calls_are_refused(case: Case) -> None:
    async def close() -> None:
        engine = case.build(case.model(), max_concurrent=1)
        calls = [
            asyncio.create_task(engine.generate(prompt(4), Sampling(max_new_tokens=55)))
            for _ in range(3)
        ]
        await until_sampled(engine, 2)
        await engine.close()
        async with asyncio.timeout(30):
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, EngineError) for result in results)
        with pytest.raises(EngineError, match="closed"):
            await engine.generate(prompt(4), Sampling(max_new_tokens=1))
        with pytest.raises(EngineError, match="closed"):
            await engine.begin_load(Manifest.of(1, []))
        await engine.close()

    asyncio.run(close())


@every_engine
def test_a_failing_step_ends_all_requests_with_its_reason(case: Case) -> None:
    model = case.model()
    broken = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.fill_(float("nan"))

    async def fail() -> None:
        async with running(case.build(model, max_concurrent=2)) as engine:
            calls = [
                asyncio.create_task(engine.generate(prompt(4), Sampling(max_new_tokens=55)))
                for _ in range(4)
            ]
            await until_sampled(engine, 3)
            await publish(engine, broken, 1)
            async with asyncio.timeout(30):
                results = await asyncio.gather(*calls, return_exceptions=True)
            for result in results:
                assert isinstance(result, EngineError)
                assert "finite" in str(result)
                if not case.is_remote:  # between processes an error is its class and its sentence
                    assert isinstance(result.__cause__, EngineError)
            with pytest.raises(EngineError, match="finite"):
                await engine.generate(prompt(4), Sampling(max_new_tokens=1))

    asyncio.run(fail())


@every_engine
def test_drain_returns_when_the_last_request_has_ended(case: Case) -> None:
    async def drain() -> None:
        async with running(case.build(case.model())) as engine:
            await engine.drain()
            calls = [
                asyncio.create_task(engine.generate(prompt(3), Sampling(max_new_tokens=4 + n)))
                for n in range(5)
            ]
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                await engine.drain()
            assert engine.stats().running == engine.stats().waiting == 0
            assert engine.stats().sampled_tokens == sum(range(4, 9))
            await asyncio.gather(*calls)

    asyncio.run(drain())


@every_engine
def test_a_request_id_in_use_is_refused(case: Case) -> None:
    async def twice() -> None:
        async with running(case.build(case.model())) as engine:
            sampling = Sampling(max_new_tokens=20)
            first = asyncio.create_task(engine.generate((1, 2), sampling, request_id="a"))
            await until_sampled(engine, 1)
            with pytest.raises(EngineError, match="'a' is in use"):
                await engine.generate((1, 2), sampling, request_id="a")
            await first
            again = await engine.generate((1, 2), sampling, request_id="a")
            assert len(again.tokens) == 20

    asyncio.run(twice())


@every_engine
def test_a_check_tells_the_version_and_fails_where_nothing_is_served(case: Case) -> None:
    model = case.model()

    async def check() -> None:
        async with running(case.build(model)) as engine:
            call = asyncio.create_task(engine.generate(prompt(4), Sampling(max_new_tokens=9)))
            await engine.pause()
            assert await engine.check() == 0
            await publish(engine, model, 2)
            assert await engine.check() == 2
            await engine.resume()
            await call
        with pytest.raises(EngineError, match="closed"):
            await engine.check()

    asyncio.run(check())
