import pytest

from parity.errors import ConfigError
from parity.rewards import REWARDS
from parity.rewards.config import GraderConfig, RewardConfig, label_of, weight_of


def test_every_shipped_reward_has_a_config_and_the_other_way_round():
    assert {config.name for config in RewardConfig.__args__} == set(REWARDS._table)


@pytest.mark.parametrize(
    "options",
    [
        {"processes": 0},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"memory_mib": 1},
        {"max_children": -1},
    ],
)
def test_grader_that_cannot_work_is_refused(options):
    with pytest.raises(ConfigError):
        GraderConfig(**options)


def test_part_of_a_sum_has_defaults():
    assert (label_of({"name": "exact"}, 0), weight_of({"name": "exact"}, 0)) == ("exact", 1.0)
