"""Overrides: plain key=value for every key of the schema, one value each."""

import pytest

from parity.config.overrides import parse
from parity.config.schema import SftConfig, TrainConfig
from parity.errors import ConfigError


def refusal(word: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(TrainConfig, [word])
    return str(caught.value)


@pytest.mark.parametrize("word", ["steps=3", "+steps=3", "++steps=3"])
def test_a_plus_is_never_needed_and_never_wrong(word: str):
    (override,) = parse(TrainConfig, [word])
    assert override.text == "++steps=3"
    assert override.paths == ("steps",)


def test_a_mapping_value_sets_the_keys_that_it_holds():
    (override,) = parse(TrainConfig, ["tasks={name: jsonl, settings: {a: 1}}"])
    assert override.paths == ("tasks", "tasks.name", "tasks.settings", "tasks.settings.a")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("rollouts.maxlag=2", ["rollouts.maxlag=2", "Did you mean rollouts.max_lag?"]),
        ("steps", ["'steps' isn't key=value", "steps=50"]),
        ("=3", ["isn't key=value"]),
        ("steps=1,2", ["a sweep", "steps=[1,2]"]),
        ("steps=range(1,3)", ["a sweep"]),
        ("~steps", ["can't be removed"]),
        ("tasks@x=1", ["'@' has no meaning"]),
        ("model.path=~/m", ["can't be read", "\"model.path='~/m'\""]),
        ("steps.deeper=1", ["there is no key steps.deeper"]),
        ("kind=sft", ["there is no key kind"]),
        ("hydra.run.dir=x", ["there is no key hydra.run.dir"]),
        ("answers.0.weight=1", ["there is no key answers.0.weight"]),
        ("sampling.stop.0.x=1", ["there is no key"]),
    ],
)
def test_what_is_not_one_value_for_a_key_is_refused(word: str, words: list[str]):
    message = refusal(word)
    for part in words:
        assert part in message


def test_the_suggested_quoting_can_be_read():
    message = refusal("tasks.suffix=it's #1")
    quoted = message.partition('"')[2].partition('"')[0]
    assert parse(TrainConfig, [quoted])


def test_any_key_may_follow_below_a_mapping():
    assert parse(TrainConfig, ["tasks.settings.anything.below=1", "reward.arguments.x=2"])


def test_entries_of_a_list_are_reached_by_number():
    assert parse(SftConfig, ["answers.0.weight=2", "tiny_model.hidden_size=64"])
    with pytest.raises(ConfigError, match=r"there is no key answers\.0\.wait"):
        parse(SftConfig, ["answers.0.wait=2"])
