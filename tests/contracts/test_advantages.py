"""What every advantage must do, run over each registered one, third-party ones included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.advantages import ADVANTAGES
from parity.algorithms.advantages.advantage import has_spread, load_advantage
from parity.algorithms.config import GrpoAdvantageConfig
from parity.errors import RewardError

NAN = math.nan
EVERY_ADVANTAGE = pytest.mark.parametrize("name", ADVANTAGES.names())
EVERY_CONFIG = pytest.mark.parametrize(
    "config",
    [GrpoAdvantageConfig(normalize_std=True), GrpoAdvantageConfig(normalize_std=False)],
    ids=["normalized", "plain"],
)
rewards = st.one_of(
    st.just(NAN), st.floats(-1e6, 1e6, allow_subnormal=False), st.sampled_from([0.0, 0.1, 1.0])
)


def rows_of(width):
    return st.lists(st.lists(rewards, min_size=width, max_size=width), min_size=1, max_size=5)


tables = st.integers(1, 7).flatmap(rows_of)


def compute(name, config, rows):
    table = torch.tensor(rows, dtype=torch.float64)
    return table, load_advantage(name)(table, config)


@EVERY_ADVANTAGE
@EVERY_CONFIG
@settings(max_examples=50, deadline=None)
@given(rows=tables)
def test_advantages_are_finite_float64_of_the_same_shape(name, config, rows):
    table, result = compute(name, config, rows)
    assert result.shape == table.shape and result.dtype == torch.float64
    assert result.isfinite().all()


@EVERY_ADVANTAGE
@EVERY_CONFIG
@settings(max_examples=50, deadline=None)
@given(rows=tables)
def test_no_reward_and_no_spread_are_exactly_zero(name, config, rows):
    table, result = compute(name, config, rows)
    assert not result[table.isnan()].any()
    assert not result[~has_spread(table)].any()


@EVERY_ADVANTAGE
@EVERY_CONFIG
@pytest.mark.parametrize("value", [0.0, 0.1, 0.7, 1 / 3, -5.3, 1e19])
def test_equal_rewards_are_exactly_zero_at_every_group_size(name, config, value):
    for size in range(1, 20):
        _, result = compute(name, config, [[value] * size])
        assert not result.any()


@EVERY_ADVANTAGE
@EVERY_CONFIG
def test_the_better_answer_has_the_greater_advantage(name, config):
    _, result = compute(name, config, [[0.0, 1.0, NAN, 0.5]])
    low, high, unscored, middle = result[0].tolist()
    assert low < middle < high and low < 0 < high and unscored == 0


@EVERY_ADVANTAGE
@EVERY_CONFIG
@settings(max_examples=50, deadline=None)
@given(rows=tables)
def test_a_group_depends_on_itself_alone(name, config, rows):
    _, together = compute(name, config, rows)
    for index, row in enumerate(rows):
        assert torch.equal(compute(name, config, [row])[1][0], together[index])


@EVERY_ADVANTAGE
@EVERY_CONFIG
@settings(max_examples=50, deadline=None)
@given(
    row=st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=1, max_size=6), data=st.data()
)
def test_an_unscored_sibling_changes_no_one(name, config, row, data):
    position = data.draw(st.integers(0, len(row)))
    _, expected = compute(name, config, [row])
    _, with_gap = compute(name, config, [[*row[:position], NAN, *row[position:]]])
    others = [i for i in range(len(row) + 1) if i != position]
    assert with_gap[0, position] == 0
    torch.testing.assert_close(with_gap[0, others], expected[0], rtol=1e-9, atol=1e-6)


@EVERY_ADVANTAGE
@EVERY_CONFIG
@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_reward_is_refused(name, config, value):
    with pytest.raises(RewardError, match="sibling 1 of group 0"):
        compute(name, config, [[0.0, value], [0.0, 1.0]])


@EVERY_ADVANTAGE
@EVERY_CONFIG
def test_the_rewards_are_left_as_they_were(name, config):
    table = torch.tensor([[1.0, NAN, 0.0]], dtype=torch.float64)
    before = table.clone()
    load_advantage(name)(table, config)
    assert torch.equal(table.nan_to_num(nan=-7.0), before.nan_to_num(nan=-7.0))
