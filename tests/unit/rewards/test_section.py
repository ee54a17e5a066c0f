import pytest

from parity.errors import ConfigError
from parity.registry import Registry
from parity.rewards import section
from parity.rewards.config import (
    ExactRewardConfig,
    NumericRewardConfig,
    PythonRewardConfig,
    SumRewardConfig,
)
from parity.rewards.exact import ExactReward
from parity.rewards.reward import Reward
from parity.types import Answer, RewardResult, Scored


class Foreign(Reward):
    """A reward of another package."""

    def __init__(self, config: dict) -> None:
        self.config = config

    def score(self, answer: Answer) -> RewardResult:
        return Scored(0.5)


@pytest.fixture
def with_foreign(monkeypatch):
    table = {"foreign": "unit.rewards.test_section:Foreign", "broken": "parity.types:Scored"}
    monkeypatch.setattr(section, "REWARDS", Registry("rewards", table))


@pytest.mark.parametrize(
    "config",
    [
        ExactRewardConfig(pattern="a(.)", strip=False),
        NumericRewardConfig(relative_tolerance=0.5),
        PythonRewardConfig(function="a:b", arguments={"x": [1, {"y": None}]}),
        SumRewardConfig(parts=({"name": "exact"}, {"name": "format", "weight": 2.0})),
    ],
)
def test_config_survives_the_way_to_plain_data_and_back(config):
    assert section.parse(section.plain(config)) == config


def test_config_and_its_section_build_the_same_reward():
    assert type(section.build(ExactRewardConfig())) is ExactReward
    assert type(section.build({"name": "exact", "strip": True})) is ExactReward


def test_whole_number_is_taken_as_a_number():
    config = section.parse({"name": "numeric", "relative_tolerance": 0})
    assert config == NumericRewardConfig(relative_tolerance=0.0)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "name is None"),
        ({"name": "exakt"}, "Did you mean 'exact'"),
        ({"name": "exact", "stripp": True}, "no key 'stripp'.*Did you mean 'strip'"),
        ({"name": "exact", "strip": 1}, "strip is 1; it must be true or false"),
        ({"name": "exact", "strip": "yes"}, "strip is 'yes'"),
        ({"name": "exact", "pattern": 1}, "pattern is 1; it must be text or null"),
        ({"name": "numeric", "relative_tolerance": True}, "must be a number"),
        ({"name": "numeric", "relative_tolerance": -1}, "relative_tolerance is -1"),
        ({"name": "python", "function": "a:b", "arguments": []}, "must be a section"),
        ({"name": "sum", "parts": "exact"}, "must be a list"),
    ],
)
def test_section_that_cannot_be_used_is_refused(plain, message):
    with pytest.raises(ConfigError, match=message):
        section.parse(plain)


def test_reward_of_another_package_receives_the_section_as_it_is(with_foreign):
    plain = {"name": "foreign", "anything": [1, 2]}
    reward = section.build(plain)
    assert type(reward).__name__ == "Foreign"
    assert vars(reward)["config"] == plain


def test_class_that_is_no_reward_is_refused(with_foreign):
    with pytest.raises(ConfigError, match="must be a subclass of"):
        section.build({"name": "broken"})
