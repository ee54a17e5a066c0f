"""What a step says of its groups, and the last guard before old tokens would be trained."""

import re

import fakes
import pytest

from parity.errors import TrainingError
from parity.rollouts.report import check_lag, lag_metrics, rollout_metrics
from parity.types import GraderFailure, Scored, Unscored


def episodes(*versions: int):
    return [fakes.episode(fakes.task(), 8, 9, version=version) for version in versions]


@pytest.mark.parametrize("versions", [(3,), (4,), (3, 4), ()])
def test_tokens_within_the_bound_may_be_trained(versions: tuple[int, ...]):
    check_lag(episodes(*versions), version=4, bound=1)


@pytest.mark.parametrize(
    ("versions", "said"), [((2, 4), "2 versions (least: 0)"), ((5,), "-1 versions (least: -1)")]
)
def test_older_tokens_and_those_of_the_future_are_refused(versions: tuple[int, ...], said: str):
    with pytest.raises(TrainingError, match=re.escape(said)):
        check_lag(episodes(*versions), version=4, bound=1)


def test_the_lag_is_a_mean_over_sampled_tokens():
    found = lag_metrics(episodes(4, 3, 3, 3), version=4)
    assert found == {"rollout/lag_mean": 0.75, "rollout/lag_max": 1.0}
    assert lag_metrics([], version=4) == {}


def test_what_has_no_value_is_in_no_mean():
    rewards = [Scored(1.0), Scored(0.0), Unscored("no answer"), GraderFailure("crashed")]
    found = rollout_metrics([fakes.group(0, rewards)])
    assert (found["rollout/raw_reward"], found["rollout/reward_std"]) == (0.5, 0.5)
    shares = ("scored", "unscored", "failed", "zero_spread")
    assert [found[f"rollout/{name}_share"] for name in shares] == [0.5, 0.25, 0.25, 0.0]
