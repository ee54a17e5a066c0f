from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
from parity.types import Answer, Json, RewardResult, Scored


@dataclass(frozen=True, kw_only=True)
class Judge:
    name: Literal["judge"] = "judge"
    strictness: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Dice:
    name: Literal["dice"] = "dice"
    sides: int = 6


@dataclass(frozen=True, kw_only=True)
class ForeignConfig:
    name: Literal["foreign"] = "foreign"
    needed: int
    level: Literal["low", "high"] | None = None
    words: tuple[str, ...] | None = None
    judge: "Judge | Dice" = Judge()  # postponed on purpose
    judges: tuple[Judge, ...] = ()
    options: Mapping[str, Json] = field(default_factory=dict)


class Foreign(Reward):
    """A reward of another package."""

    Config = ForeignConfig

    def __init__(self, config: ForeignConfig) -> None:
        self.config = config

    def score(self, answer: Answer) -> RewardResult:
        return Scored(0.5)


@pytest.fixture
def with_foreign(monkeypatch):
    table = {
        "foreign": "unit.rewards.test_section:Foreign",
        "bare": "parity.rewards.reward:Reward",
        "broken": "parity.types:Scored",
    }
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


FOREIGN = ForeignConfig(
    needed=1,
    level="high",
    words=("a", "b"),
    judge=Dice(sides=4),
    judges=(Judge(), Judge(strictness=2.0)),
    options={"x": [1, {"y": None}], "z": "1"},
)


@pytest.mark.parametrize("config", [FOREIGN, ForeignConfig(needed=2)])
def test_reward_of_another_package_is_built_from_its_own_config(with_foreign, config):
    reward = section.build(section.plain(config))
    assert type(reward).__name__ == "Foreign"
    # The registry imports this module under another name, so the classes aren't the same.
    assert repr(vars(reward)["config"]) == repr(config)
    assert vars(section.build(config))["config"] is config


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "reward foreign can't be built .*needed.*give what is missing"),
        ({"needed": 1, "stipp": 1}, "reward foreign has no key 'stipp'"),
        ({"needed": 1.5}, "needed is 1.5; it must be a whole number"),
        ({"needed": 1, "level": "lo"}, "level is 'lo'; known: low, high. Did you mean 'low'"),
        ({"needed": 1, "words": "ab"}, "words is 'ab'; it must be a list or null"),
        ({"needed": 1, "words": [1]}, "words.0 is 1; it must be text"),
        ({"needed": 1, "judge": {"name": "jury"}}, "judge is .*'jury'.*; it must be a section"),
        ({"needed": 1, "judges": [{"name": "judge", "x": 1}]}, "judges.0 has no key 'x'"),
    ],
)
def test_section_of_another_package_is_strict(with_foreign, plain, message):
    with pytest.raises(ConfigError, match=message):
        section.parse({"name": "foreign", **plain})


def test_class_that_cannot_be_chosen_is_refused(with_foreign):
    with pytest.raises(ConfigError, match="must be a subclass of"):
        section.build({"name": "broken"})
    with pytest.raises(ConfigError, match=r"rewards\.bare .* has no attribute Config"):
        section.build({"name": "bare"})
