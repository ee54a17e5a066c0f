"""Tokens are drawn from the right distribution, with noise that depends on nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.embedded.sampler import (
    SamplingPlan,
    derive_seed,
    draw,
    draw_filtered,
    sample,
    uniforms,
)

CPU = torch.device("cpu")


def plan(
    temperature: list[float], *, top_p: list[float] | None = None, top_k: list[int] | None = None
) -> SamplingPlan:
    rows = len(temperature)
    return SamplingPlan.of(
        temperature=np.array(temperature, np.float32),
        top_p=np.array(top_p or [1.0] * rows),
        top_k=np.array(top_k or [0] * rows),
        device=CPU,
    )


def noise(rows: int, seed: int = 0) -> torch.Tensor:
    seeds = np.full(rows, seed, np.uint64)
    return torch.from_numpy(uniforms(seeds, np.arange(rows)))


def test_uniforms_are_those_of_splitmix64() -> None:
    # Reference values of splitmix64 started at 0: its first outputs.
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    state = first[0]  # the stream of seed 0 starts at the mixed seed

    def output(word: int) -> int:
        mask = 2**64 - 1
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        return word ^ (word >> 31)

    assert output(0x9E3779B97F4A7C15) == first[0]
    expected = [
        (output((state + (n + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 11) / 2**53 for n in range(3)
    ]
    found = uniforms(np.zeros(3, np.uint64), np.arange(3))
    assert found.tolist() == expected


def test_uniforms_are_uniform_and_streams_do_not_overlap() -> None:
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 100)
    found = uniforms(seeds, np.tile(np.arange(100), 200))
    assert found.min() >= 0.0
    assert found.max() < 1.0
    assert len(np.unique(found)) == len(found)
    counts = np.histogram(found, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 60  # 19 degrees of freedom
    rows = found.reshape(200, 100)
    correlations = np.corrcoef(rows[:, :-1].ravel(), rows[:, 1:].ravel())[0, 1]
    assert abs(correlations) < 0.03


def test_derived_seeds_differ_by_engine_seed_and_request() -> None:
    seeds = {derive_seed(seed, number) for seed in range(50) for number in range(50)}
    assert len(seeds) == 2500
    assert derive_seed(3, 4) == derive_seed(3, 4)
    assert 0 <= derive_seed(-1, 0) < 2**64


@pytest.mark.parametrize("size", [5, 1024, 1025, 5000])
def test_draw_inverts_the_cumulative_distribution(size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(64, size, generator=generator)
    weights[:, ::3] = 0.0
    uniform = torch.rand(64, dtype=torch.float64, generator=generator)
    uniform[:4] = torch.tensor([0.0, 1.0 - 2.0**-53, 0.5, 1e-300], dtype=torch.float64)
    cumulative = weights.double().cumsum(-1)
    target = uniform.unsqueeze(-1) * cumulative[:, -1:]
    expected = (cumulative <= target).sum(-1)
    found = draw(weights, uniform)
    chosen = weights.gather(-1, found.unsqueeze(-1)).squeeze(-1)
    assert (chosen > 0).all()
    gap = (cumulative - target).abs().min(dim=-1).values / cumulative[:, -1]
    clear = gap > 1e-9  # at an edge, rounding may take either side
    assert clear[4:].all()
    assert torch.equal(found[clear], expected[clear])


@given(
    values=st.lists(st.floats(0.0, 1.0, width=32), min_size=2, max_size=40),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
@settings(max_examples=50, deadline=None)
def test_a_token_of_weight_zero_is_never_drawn(values: list[float], uniform: float) -> None:
    weights = torch.tensor([[*values, 0.5, 0.0]])
    index = draw(weights, torch.tensor([uniform], dtype=torch.float64))
    assert weights[0, int(index)] > 0


@pytest.mark.parametrize("size", [30, 3000])
def test_filters_keep_exactly_the_tokens_of_their_definition(size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    probabilities = torch.softmax(3 * torch.randn(1, size, generator=generator), dim=-1)
    values, order = probabilities[0].sort(descending=True)
    draws = 4000
    uniform = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    for top_k, top_p in ((3, 1.0), (10**9, 0.5), (8, 0.7), (1, 1.0), (10**9, 0.999)):
        kept = values[: min(top_k, size)].double()
        kept /= kept.sum()
        kept = kept[: int((kept.cumsum(0) - kept < top_p).sum())]
        kept /= kept.sum()
        found = draw_filtered(
            probabilities.expand(draws, -1),
            uniform,
            top_k=torch.full((draws, 1), top_k),
            top_p=torch.full((draws, 1), top_p, dtype=torch.float64),
        )
        counts = torch.bincount(found, minlength=size)[order].double()
        assert counts[len(kept) :].sum() == 0
        assert (counts[: len(kept)] / draws - kept).abs().max() < 2 / draws


def test_rows_with_different_settings_are_sampled_each_by_its_own() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 40, generator=generator)
    settings_of = plan(
        [1.0, 0.0, 0.5, 2.0, 0.0],
        top_p=[1.0, 0.3, 1.0, 0.4, 1.0],
        top_k=[0, 2, 0, 5, 0],
    )
    uniform = noise(5)
    ids, logprobs = sample(logits, settings_of, uniform)
    assert ids[1] == logits[1].argmax()
    assert ids[4] == logits[4].argmax()
    for row, temperature in enumerate([1.0, 1.0, 0.5, 2.0, 1.0]):
        expected = torch.log_softmax(logits[row].double() / temperature, dim=-1)[ids[row]]
        assert logprobs[row].item() == pytest.approx(expected.item(), abs=1e-6)
    alone, _ = sample(logits[:1], plan([1.0]), uniform[:1])
    assert ids[0] == alone[0]
    filtered, _ = sample(logits[3:4], plan([2.0], top_p=[0.4], top_k=[5]), uniform[3:4])
    assert ids[3] == filtered[0]


def test_a_plan_holds_only_what_somebody_needs() -> None:
    plain = plan([1.0, 1.0])
    assert plain.temperature is plain.greedy is plain.filtered is None
    greedy = plan([0.0, 0.0], top_k=[5, 5])
    assert greedy.is_all_greedy
    assert greedy.filtered is None
    assert plan([0.7]).temperature is not None


def test_logits_that_are_not_finite_give_nan_instead_of_a_token_out_of_range() -> None:
    for size in (8, 2000):
        logits = torch.zeros(3, size)
        logits[1] = torch.nan
        logits[2, 3] = torch.inf
        for top_k in (0, 4):
            ids, logprobs = sample(logits, plan([1.0] * 3, top_k=[top_k] * 3), noise(3))
            assert ((ids >= 0) & (ids < size)).all()
            assert torch.isfinite(logprobs[0])
            assert torch.isnan(logprobs[1:]).all()
