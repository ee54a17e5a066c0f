import math

import pytest
import torch

from parity.algorithms.advantages.advantage import (
    MAX_REWARD,
    check_rewards,
    has_spread,
    load_advantage,
    spread_share,
)
from parity.algorithms.advantages.grpo import grpo
from parity.errors import ConfigError, RewardError

NAN = math.nan


def table(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_only_groups_with_two_different_rewards_have_spread():
    rewards = table([1, 0, 1], [1, 1, 1], [0, NAN, 1], [1, NAN, 1], [5, NAN, NAN], [NAN] * 3)
    assert has_spread(rewards).tolist() == [True, False, True, False, False, False]


def test_rewards_that_differ_by_rounding_alone_have_no_spread():
    rewards = table([0.1 + 0.2, 0.3], [1e6 * (0.1 + 0.2), 1e6 * 0.3], [0.0, -0.0])
    assert not has_spread(rewards).any()


def test_small_but_real_differences_are_spread():
    rewards = table([1.0, 1.0 + 1e-9], [0.0, 1e-300], [-1e-5, 1e-5])
    assert has_spread(rewards).all()


def test_the_share_counts_groups_and_is_unknown_without_any():
    assert spread_share(table([1, 0], [1, 1], [0, 0], [NAN, NAN])) == 0.25
    assert spread_share(torch.empty(0, 4, dtype=torch.float64)) is None


@pytest.mark.parametrize("value", [math.inf, -math.inf, 2 * MAX_REWARD, -2 * MAX_REWARD])
def test_a_reward_no_float32_loss_could_hold_is_refused_with_its_place(value):
    with pytest.raises(RewardError, match=r"sibling 2 of group 1 is -?(inf|2e\+20)"):
        check_rewards(table([1, 0, NAN], [0, 0, value]))


def test_rewards_of_another_type_or_shape_break_the_contract():
    with pytest.raises(AssertionError, match="float64"):
        check_rewards(torch.zeros(2, 2))
    with pytest.raises(AssertionError, match="shape"):
        check_rewards(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(AssertionError, match="no siblings"):
        check_rewards(torch.zeros(2, 0, dtype=torch.float64))


def test_advantages_are_found_by_name_and_a_wrong_name_gets_the_nearest():
    assert load_advantage("grpo") is grpo
    with pytest.raises(ConfigError, match="Did you mean 'grpo'"):
        load_advantage("grpoo")
