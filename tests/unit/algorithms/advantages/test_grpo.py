import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.advantages.advantage import MAX_REWARD
from parity.algorithms.advantages.grpo import STD_EPSILON, grpo
from parity.algorithms.config import GrpoAdvantageConfig
from parity.errors import RewardError

NAN = math.nan
PLAIN = GrpoAdvantageConfig(normalize_std=False)
NORMALIZED = GrpoAdvantageConfig(normalize_std=True)
CONFIGS = pytest.mark.parametrize("config", [PLAIN, NORMALIZED], ids=["plain", "normalized"])
rewards_of_a_group = st.lists(
    st.one_of(st.just(NAN), st.floats(-MAX_REWARD, MAX_REWARD, allow_subnormal=False)),
    min_size=1,
    max_size=9,
)


def table(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_without_std_the_advantage_is_reward_minus_group_mean():
    result = grpo(table([1, 0, 0, 1], [2, 0, 0, 0]), PLAIN)
    assert result.tolist() == [[0.5, -0.5, -0.5, 0.5], [1.5, -0.5, -0.5, -0.5]]
    assert result.dtype == torch.float64


def test_with_std_the_unbiased_deviation_of_the_group_divides():
    # deviations 0.5, -0.5, -0.5, 0.5: variance 4 * 0.25 / 3
    unit = 0.5 / (math.sqrt(1 / 3) + STD_EPSILON)
    result = grpo(table([1, 0, 0, 1]), NORMALIZED)
    torch.testing.assert_close(result, table([unit, -unit, -unit, unit]), rtol=1e-14, atol=0)


def test_the_std_is_that_of_the_group_and_not_of_the_batch():
    alone = grpo(table([1, 0, 0, 1]), NORMALIZED)
    beside = grpo(table([1000, -1000, 0, 0], [1, 0, 0, 1]), NORMALIZED)
    assert torch.equal(beside[1:], alone)


def test_an_unscored_sibling_gets_zero_and_changes_no_one():
    for config in (PLAIN, NORMALIZED):
        with_gap = grpo(table([1, NAN, 0, 1]), config)[0]
        without = grpo(table([1, 0, 1]), config)[0]
        assert with_gap[1] == 0.0
        assert torch.equal(with_gap[[0, 2, 3]], without)


@CONFIGS
@pytest.mark.parametrize(
    "row",
    [[0.1] * 7, [0.1] * 8, [0.7] * 3, [1 / 3] * 9, [5.0, NAN, NAN], [NAN, NAN], [0.7], [NAN]],
    ids=str,
)
def test_a_group_without_spread_is_exactly_zero(row, config):
    assert grpo(table(row), config).tolist() == [[0.0] * len(row)]


@pytest.mark.parametrize("row", [[0.1] * 7, [0.7] * 3, [1 / 3] * 9], ids=str)
def test_the_formula_alone_would_miss_zero_for_some_of_these_groups(row):
    rewards = table(row)
    assert (rewards - rewards.nansum(dim=1, keepdim=True) / len(row)).any()


@CONFIGS
def test_infinite_rewards_are_refused(config):
    with pytest.raises(RewardError, match="sibling 0 of group 1 is inf"):
        grpo(table([1, 0], [math.inf, 0]), config)


@CONFIGS
def test_no_groups_give_no_advantages(config):
    assert grpo(torch.empty(0, 4, dtype=torch.float64), config).shape == (0, 4)


@CONFIGS
@settings(max_examples=50, deadline=None)
@given(row=rewards_of_a_group)
def test_any_rewards_give_finite_advantages_of_the_right_sign(config, row):
    rewards = table(row)
    result = grpo(rewards, config)
    assert result.isfinite().all()
    assert (result[rewards.isnan()] == 0).all()
    if result.any():
        valid = ~rewards.isnan()
        best = rewards.masked_fill(~valid, -math.inf).argmax()
        worst = rewards.masked_fill(~valid, math.inf).argmin()
        assert result[0, best] > 0 > result[0, worst]


@CONFIGS
@settings(max_examples=50, deadline=None)
@given(
    row=st.lists(
        st.one_of(st.just(NAN), st.floats(-100, 100, allow_subnormal=False)), min_size=1, max_size=8
    ),
    padding=st.integers(0, 5),
    data=st.data(),
)
def test_the_order_of_siblings_and_padding_change_nothing(config, row, padding, data):
    expected = grpo(table(row), config)[0]
    order = data.draw(st.permutations(range(len(row))))
    shuffled = grpo(table([row[i] for i in order] + [NAN] * padding), config)[0]
    assert (shuffled[len(row) :] == 0).all()
    torch.testing.assert_close(shuffled[: len(row)], expected[list(order)], rtol=1e-9, atol=1e-6)
