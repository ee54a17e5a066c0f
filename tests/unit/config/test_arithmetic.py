"""Derived numbers by hand, and what doesn't add up is refused before anything starts."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.config.arithmetic import check, derive, derive_sft
from parity.config.compose import load_sft, load_train
from parity.config.schema import SftConfig, TrainConfig
from parity.errors import ConfigError
from parity.rollouts.config import RolloutsConfig


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "2 + 2 =", "answer": "4"}\n')


def derived(*words: str):
    return derive(load_train("quickstart", words), cores=2, environment=None)


def refusal(*words: str, recipe: str = "quickstart") -> str:
    config = load_train(recipe, words)
    with pytest.raises(ConfigError) as caught:
        check(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_derived_numbers_by_hand():
    words = [
        "rollouts.groups_per_step=10",
        "rollouts.group_size=4",
        "rollouts.max_lag=1.5",
        "rollouts.steps_per_publish=2",
        "steps=20",
        "engine.max_concurrent=100",
        "prompts.max_prompt_tokens=30",
        "sampling.max_new_tokens=12",
        "eval.every_steps=5",
        "eval.num_tasks=16",
        "eval.samples_per_task=3",
        "eval.temperature=1",
    ]
    found = derived(*words)
    assert found.episodes_per_step == 40
    assert found.capacity_groups == 50  # 10 x 2 x 2.5
    assert found.capacity_episodes == 200
    assert found.max_token_age == 2
    assert found.engine_slots == 100
    assert found.max_episode_tokens == 42
    assert found.max_tokens_per_step == 1680
    assert found.publications == 11
    assert (found.total_groups, found.total_episodes) == (200, 800)
    assert found.evaluations == 5  # before, 5, 10, 15, after
    assert found.eval_episodes == 48
    assert (found.threads.trainer, found.threads.engine) == (1, 1)
    assert found.notes == (
        "engine.max_concurrent=100 is below the 200 episodes in flight: the rest waits for a slot",
    )


def test_derived_numbers_of_sft_by_hand():
    config = load_sft("sft_quickstart", ["steps=3000", "batch_size=8", "eval.num_tasks=5"])
    found = derive_sft(config, cores=2, environment=None)
    assert found.total_examples == 24_000
    assert found.max_tokens_per_step == 8 * found.max_example_tokens
    assert found.eval_episodes == 5
    assert found.threads.trainer == 2


@settings(max_examples=50, deadline=None)
@given(groups=st.integers(1, 300), publish=st.integers(1, 8), thousandths=st.integers(0, 5000))
def test_capacity_is_exact_where_floating_point_is_not(groups, publish, thousandths):
    config = RolloutsConfig(
        groups_per_step=groups, steps_per_publish=publish, max_lag=thousandths / 1000
    )
    assert config.capacity == groups * publish + groups * publish * thousandths // 1000


def test_packaged_recipes_add_up():
    check(load_train("quickstart"))
    check(load_train("quickstart_sync"))
    check(load_sft("sft_quickstart"))
    check(load_train("finetune", ["model.path=org/model", "tasks.path=tasks.jsonl"]))


def test_a_missing_model_or_file_is_said_with_the_way_to_give_it():
    assert "set model.path=FOLDER" in refusal("tasks.path=tasks.jsonl", recipe="finetune")
    assert "set tasks.path=FILE.jsonl" in refusal("model.path=org/model", recipe="finetune")
    message = refusal("model.path=org/model", "tasks.path=gone.jsonl", recipe="finetune")
    assert "tasks.path is 'gone.jsonl', and there is no such file" in message
    assert "model.path is './gone'" in refusal("model.path=./gone")
    words = ["eval.tasks.name=parquet"]
    assert "set eval.tasks.path=FILE.parquet" in refusal(*words)


def test_a_model_and_a_tiny_model_at_once_are_refused():
    config = load_sft("sft_quickstart", ["model.path=org/model"])
    with pytest.raises(ConfigError, match="tiny_model is set"):
        check(config)
    with pytest.raises(ConfigError, match=r"model\.path is missing"):
        check(SftConfig())


def test_a_lag_of_less_than_one_group_is_refused_with_the_least_that_works():
    message = refusal("rollouts.groups_per_step=4", "rollouts.max_lag=0.1")
    assert "rollouts.max_lag is 0.1" in message
    assert "of 4 groups" in message
    assert "rollouts.max_lag=0.25 or more" in message
    check(load_train("quickstart", ["rollouts.groups_per_step=4", "rollouts.max_lag=0.25"]))
    assert "=0.143 or more" in refusal("rollouts.groups_per_step=7", "rollouts.max_lag=0.1")
    check(load_train("quickstart", ["rollouts.groups_per_step=7", "rollouts.max_lag=0.143"]))


def test_a_lag_that_is_rounded_down_is_noted():
    (note,) = [
        n
        for n in derived("rollouts.groups_per_step=32", "rollouts.max_lag=0.3").notes
        if "max_lag" in n
    ]
    assert "9.6 groups ahead, rounded down to 9" in note


def test_steps_that_would_never_be_published_are_refused_with_the_nearest_numbers():
    message = refusal("steps=10", "rollouts.steps_per_publish=4")
    assert "set steps=8 or steps=12" in message
    assert "set steps=4" in refusal("steps=3", "rollouts.steps_per_publish=4", "eval.every_steps=2")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["correction.level=token"], ["correction.level=auto", "loss.old_logprobs=trainer"]),
        (
            ["eval.temperature=0", "eval.samples_per_task=4"],
            ["eval.temperature=0", "eval.samples_per_task=1"],
        ),
        (["steps=80", "schedule.warmup_steps=80"], ["schedule.warmup_steps is 80", "below 80"]),
        (["schedule.final_share=0.1"], ["schedule.final_share is 0.1", "linear"]),
        (["rollouts.max_drops_per_step=3"], ["rollouts.max_drops_per_step is 3", "no effect"]),
        (["weights.transport=disk"], ["weights.transport is 'disk'", "runtime=inline", "direct"]),
        (["weights.verify=canary"], ["weights.verify is 'canary'", "weights.verify=digests"]),
        (
            [
                "engine.max_length=64",
                "prompts.max_prompt_tokens=90",
                "sampling.max_new_tokens=10",
            ],
            ["engine.max_length is 64", "engine.max_length=100"],
        ),
        (
            ["reward.name=sum", "reward.parts=[{name: exact, weight: 1, stip: true}]"],
            ["reward.parts.0.stip", "there is no key"],
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(words: list[str], parts: list[str]):
    message = refusal(*words)
    for part in parts:
        assert part in message


def test_the_refused_pairs_are_fine_one_by_one():
    check(load_train("quickstart", ["loss.old_logprobs=trainer", "correction.level=sequence"]))
    check(load_train("quickstart", ["eval.samples_per_task=4", "eval.temperature=0.8"]))
    check(load_train("quickstart", ["weights.transport=direct", "weights.verify=off"]))
    words = ["reward.name=sum", "reward.parts=[{name: exact, weight: 1, label: a}]"]
    check(load_train("quickstart", words))


def test_intervals_beyond_the_end_and_groups_of_one_are_noted():
    notes = derived(
        "steps=10", "eval.every_steps=20", "rollouts.group_size=1", "checkpoint.every_steps=50"
    ).notes
    assert any(note.startswith("eval.every_steps=20 is not below steps=10") for note in notes)
    assert any(note.startswith("checkpoint.every_steps=50") for note in notes)
    assert any("teaches nothing" in note for note in notes)


def test_the_schemas_defaults_need_only_a_model():
    with pytest.raises(ConfigError, match=r"model\.path"):
        check(TrainConfig())
