"""SFT and evaluation as commands, on a tiny model."""

import json
from pathlib import Path

import pytest

from parity.config.arithmetic import check
from parity.config.compose import load_sft, load_train
from parity.errors import ConfigError
from parity.folder import RunFolder
from parity.measure import evaluate, wanted
from parity.observe.summary import Summary
from parity.sft.command import sft


def test_sft_teaches_a_new_model_its_answers(tasks_path: Path, tmp_path: Path) -> None:
    config = load_sft(
        "sft_quickstart",
        [
            "tiny_model.hidden_size=48",
            "tiny_model.num_layers=2",
            "tiny_model.max_length=64",
            "tasks.name=jsonl",
            f"tasks.path={tasks_path}",
            "answers=[{template: '{answer}'}]",
            "reward.name=exact",
            "prompts.max_prompt_tokens=16",
            "sampling.max_new_tokens=4",
            "steps=60",
            "batch_size=32",
            "optimizer.lr=5e-3",
            "schedule.warmup_steps=5",
            "eval.num_tasks=10",
            "eval.temperature=0.0",
            f"output.dir={tmp_path}",
            "output.name=sft",
            "trackers.names=[jsonl]",
            "display=none",
        ],
    )
    check(config)
    assert sft(config, recipe="sft_quickstart") == 0
    summary = Summary.read(tmp_path / "sft")
    assert summary.eval_first is not None
    assert summary.eval_last is not None
    assert summary.eval_first <= 0.3
    assert summary.eval_last >= 0.6
    model = RunFolder(tmp_path / "sft").model_dir
    again = load_train(
        "finetune",
        [
            f"model.path={model}",
            f"tasks.path={tasks_path}",
            "tasks.chat=false",
            "eval.num_tasks=10",
            "sampling.max_new_tokens=4",
            "prompts.max_prompt_tokens=16",
            f"output.dir={tmp_path}",
        ],
    )
    recipe = tmp_path / "again.yaml"
    from parity.config.saved import save

    save(again, recipe)
    assert evaluate_once(str(model), recipe=str(recipe)) == 0
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*/evaluation.json")]
    assert len(found) == 1
    assert found[0]["eval/accuracy"] == pytest.approx(summary.eval_last)


def evaluate_once(name: str, *, recipe: str | None) -> int:
    return evaluate(
        name,
        recipe=recipe,
        overrides=("display=none",),
        samples=None,
        tasks=None,
        temperature=None,
        k=(),
    )


def test_a_model_without_a_recipe_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--recipe"):
        wanted(str(tmp_path), recipe=None, overrides=())
