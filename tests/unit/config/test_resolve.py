"""Closed and strict: what isn't a key, isn't of this section or isn't of the type is refused."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.config import CorrectionConfig, PpoClipLossConfig
from parity.config.resolve import resolve, resolve_union, to_plain
from parity.config.schema import (
    AnswerStyle,
    EvalConfig,
    RewardConfig,
    SftConfig,
    TasksConfig,
    TinyModelConfig,
    TrainConfig,
)
from parity.errors import ConfigError
from parity.rewards.config import ExactRewardConfig, SumRewardConfig
from parity.rollouts.config import RolloutsConfig, SamplingConfig
from parity.tasks.config import FileConfig, ReasoningGymConfig
from parity.training.config import AdamWConfig


def refusal(plain: dict[str, object], schema: type = TrainConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(schema, plain)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_empty_mapping_gives_the_defaults():
    assert resolve(TrainConfig, {}) == TrainConfig()
    assert resolve(SftConfig, {}) == SftConfig()


def test_values_reach_their_sections():
    config = resolve(
        TrainConfig,
        {
            "steps": 7,
            "rollouts": {"max_lag": 2, "group_size": 4},
            "sampling": {"stop": ["a", "b"]},
            "eval": {"tasks": {"name": "parquet", "path": "held.parquet"}},
        },
    )
    assert config.steps == 7
    assert config.rollouts == RolloutsConfig(max_lag=2.0, group_size=4)
    assert isinstance(config.rollouts.max_lag, float)
    assert config.sampling.stop == ("a", "b")
    assert config.eval.tasks == FileConfig(name="parquet", path="held.parquet")


def test_a_section_that_is_partly_given_keeps_the_defaults_of_its_parent():
    config = resolve(SftConfig, {"optimizer": {"beta1": 0.8}})
    assert config.optimizer == AdamWConfig(lr=1e-3, beta1=0.8)


def test_name_picks_the_variant_and_the_others_keys_are_refused_with_the_way_to_switch():
    config = resolve(TrainConfig, {"tasks": {"name": "jsonl", "path": "x.jsonl"}})
    assert config.tasks == FileConfig(path="x.jsonl")
    message = refusal({"tasks": {"path": "x.jsonl"}})
    assert "tasks.path='x.jsonl' has no effect" in message
    assert "belongs to tasks.name=jsonl or parquet" in message
    assert "this run has tasks.name=reasoning_gym" in message
    assert "Set tasks.name=jsonl to switch" in message


def test_an_unknown_key_is_refused_with_its_value_and_the_nearest_key():
    message = refusal({"rollouts": {"maxlag": 1}})
    assert message.startswith("rollouts.maxlag=1: there is no key rollouts.maxlag.")
    assert "Did you mean rollouts.max_lag?" in message


def test_a_key_without_its_section_is_found_where_it_is_the_only_one():
    assert "Did you mean optimizer.lr?" in refusal({"lr": 1e-3})


def test_a_misspelt_section_is_found():
    assert "Did you mean rollouts?" in refusal({"rollout": {"max_lag": 1}})


def test_keys_below_a_list_entry_are_closed_too():
    message = refusal({"answers": [{"weight": 1.0}, {"wight": 2.0}]}, SftConfig)
    assert "answers.1.wight=2.0" in message
    assert "answers.N.weight" in message


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"steps": True}, ["steps is true", "a whole number"]),
        ({"steps": 1.5}, ["steps is 1.5", "a whole number"]),
        ({"steps": "5"}, ["steps is '5' (text)", "a whole number"]),
        ({"steps": None}, ["steps is null", "a whole number"]),
        ({"optimizer": {"lr": "abc"}}, ["optimizer.lr is 'abc' (text)", "a number"]),
        ({"optimizer": {"lr": False}}, ["optimizer.lr is false", "a number"]),
        ({"rollouts": {"max_lag": "nan"}}, ["rollouts.max_lag is 'nan' (text)"]),
        ({"rollouts": {"max_lag": math.nan}}, ["rollouts.max_lag is nan", "finite"]),
        ({"optimizer": {"lr": math.inf}}, ["optimizer.lr is inf", "finite"]),
        ({"rollouts": {"max_lag": 10**400}}, ["rollouts.max_lag is 1000", "finite"]),
        ({"tasks": {"settings": {"a": [{"b": math.nan}]}}}, ["tasks.settings.a.0.b is nan"]),
        ({"tasks": {"chat": 1}}, ["tasks.chat is 1", "true or false"]),
        ({"output": {"name": 12}}, ["output.name is 12", "text or null", "output.name='12'"]),
        ({"sampling": {"stop": "abc"}}, ["sampling.stop is 'abc'", "[abc]"]),
        ({"loss": {"dual_clip": "off"}}, ["loss.dual_clip is 'off'", "loss.dual_clip=null"]),
        ({"display": "liv"}, ["display is 'liv'", "Did you mean 'live'?"]),
        ({"model": None}, ["model is null", "a section"]),
        ({"model": 3}, ["model is 3", "a section"]),
        ({"reward": {"name": "exakt"}}, ["reward.name is 'exakt'", "Did you mean 'exact'?"]),
        ({"tasks": {"name": 3}}, ["tasks.name is 3", "known: reasoning_gym"]),
        ({"eval": {"tasks": {"path": "x"}}}, ["eval.tasks.name is missing", "jsonl"]),
        ({"tasks": {"settings": 3}}, ["tasks.settings is 3", "a section"]),
    ],
)
def test_a_wrong_value_names_the_key_the_value_and_what_is_allowed(plain, words):
    message = refusal(plain)
    for word in words:
        assert word in message


def test_whole_floats_are_integers_and_yamls_off_is_the_word_off():
    config = resolve(TrainConfig, {"steps": 1e3, "correction": {"level": False}})
    assert config.steps == 1000
    assert isinstance(config.steps, int)
    assert config.correction == CorrectionConfig(level="off")


@pytest.mark.parametrize(
    ("plain", "start"),
    [
        ({"loss": {"clip_high": -0.1}}, "loss.clip_high is -0.1; it must be >= 0.0. Set loss.clip"),
        ({"rollouts": {"max_lag": -1}}, "rollouts.max_lag is -1.0;"),
        ({"steps": 0}, "steps is 0; it must be >= 1. Set steps=1 or more."),
        ({"eval": {"num_tasks": 0}}, "eval.num_tasks is 0;"),
        ({"reward": {"name": "python"}}, "reward.function is '';"),
        (
            {"tasks": {"system": "x"}},
            "tasks.system is set but tasks.chat is false; set tasks.chat=true",
        ),
        ({"eval": {"tasks": {"name": "jsonl", "max_bad": -1}}}, "eval.tasks.max_bad is -1;"),
    ],
)
def test_errors_of_a_section_get_the_section_in_front(plain, start: str):
    assert refusal(plain).startswith(start)


def test_every_field_name_in_a_sections_message_gets_the_section():
    message = refusal({"rollouts": {"drop_zero_spread": True, "group_size": 1}})
    assert message.startswith("rollouts.drop_zero_spread is true with rollouts.group_size=1,")
    assert message.endswith(
        "set rollouts.group_size=2 or more, or rollouts.drop_zero_spread=false."
    )


def test_mapping_fields_stay_open():
    settings_ = {"min_word_len": 3, "nested": {"a": [1, 2.5, "x", None, True]}}
    config = resolve(TrainConfig, {"tasks": {"settings": settings_}})
    assert config.tasks == ReasoningGymConfig(settings=settings_)


def test_a_part_of_a_sum_is_resolved_like_a_reward_section():
    part = resolve_union(RewardConfig, {"name": "exact", "strip": False}, at="reward.parts.0")
    assert part == ExactRewardConfig(strip=False)
    with pytest.raises(ConfigError, match=r"reward\.parts\.0\.stip=false: there is no key"):
        resolve_union(RewardConfig, {"name": "exact", "stip": False}, at="reward.parts.0")
    with pytest.raises(ConfigError, match=r"reward\.parts\.1\.name is missing"):
        resolve_union(RewardConfig, {}, at="reward.parts.1")


def test_to_plain_holds_every_key_and_only_plain_values():
    plain = to_plain(TrainConfig())
    assert plain["sampling"] == {
        "max_new_tokens": 256,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "stop": [],
    }
    assert plain["eval"]["tasks"] is None  # pyright: ignore


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
tasks_configs = st.builds(
    ReasoningGymConfig, settings=st.dictionaries(st.text(max_size=5), json_values, max_size=3)
) | st.builds(FileConfig, name=st.sampled_from(["jsonl", "parquet"]), path=st.none() | st.text())


@settings(max_examples=50, deadline=None)
@given(
    tasks=tasks_configs,
    held_out=st.none() | tasks_configs,
    lag=st.floats(0, 1e6),
    stop=st.lists(st.text(max_size=5), max_size=3),
    reward=st.just(SumRewardConfig(parts=({"name": "exact", "weight": 1.0},)))
    | st.builds(ExactRewardConfig, pattern=st.none() | st.just(r"(\d+)")),
    dual_clip=st.none() | st.floats(1.5, 100),
)
def test_any_config_survives_the_way_to_plain_data_and_back(
    tasks: TasksConfig, held_out, lag, stop, reward, dual_clip
):
    config = TrainConfig(
        tasks=tasks,
        reward=reward,
        rollouts=RolloutsConfig(max_lag=lag),
        sampling=SamplingConfig(stop=tuple(stop)),
        eval=EvalConfig(tasks=held_out),
        loss=PpoClipLossConfig(dual_clip=dual_clip),
    )
    assert resolve(TrainConfig, to_plain(config)) == config


def test_an_sft_config_survives_the_way_to_plain_data_and_back():
    config = SftConfig(
        tiny_model=TinyModelConfig(num_layers=2),
        answers=(AnswerStyle(weight=2.0), AnswerStyle(transform="swap")),
    )
    assert resolve(SftConfig, to_plain(config)) == config
    assert replace(config, tiny_model=None) == resolve(
        SftConfig, {**to_plain(config), "tiny_model": None}
    )
