"""A run whose tasks and reward come from another package, from the command line to the folder."""

import json
from pathlib import Path

import pytest
from third_party import installed

from parity.cli.main import main
from parity.config.saved import load_saved
from parity.folder import RunFolder
from parity.observe.summary import Summary

MODULE = """
import os
import random
from dataclasses import dataclass
from typing import Literal

from parity.rewards.reward import Reward
from parity.tasks.source import TaskSource
from parity.types import Scored, Task


@dataclass(frozen=True, kw_only=True)
class WordsConfig:
    name: Literal["words"] = "words"
    letters: str
    size: int = 40


class Words(TaskSource):
    Config = WordsConfig

    def __init__(self, config, *, seed):
        self.config, self.seed = config, seed

    @property
    def size(self):
        return self.config.size

    def task(self, index):
        noise = random.Random(f"{self.seed}/{index}")
        word = "".join(noise.choices(self.config.letters, k=4))
        columns = {"pid": os.getpid()}
        return Task(task_id=f"w/{index}", prompt=f"{word}:", answer=word[0], columns=columns)


@dataclass(frozen=True, kw_only=True)
class LettersConfig:
    name: Literal["letters"] = "letters"
    alphabet: tuple[str, ...] = ("a",)


class Letters(Reward):
    Config = LettersConfig

    def __init__(self, config):
        self.alphabet = set(config.alphabet)

    def score(self, answer):
        assert os.getpid() != answer.columns["pid"], "not in a grader process"
        return Scored(sum(letter in self.alphabet for letter in answer.response) / 6)
"""
ALGORITHMS = """
from dataclasses import dataclass
from typing import Literal

import torch

from parity.algorithms.config import Aggregation, OldLogprobs
from parity.algorithms.losses.loss import PolicyTerms


@dataclass(frozen=True, kw_only=True)
class GradientConfig:
    name: Literal["gradient"] = "gradient"
    aggregation: Aggregation = "sequence_mean"
    old_logprobs: OldLogprobs = "trainer"
    scale: float


def gradient(logprobs, *, old_logprobs, advantages, config):
    log_ratio = logprobs - old_logprobs
    return PolicyTerms(
        loss=-config.scale * advantages * log_ratio,
        is_clipped=torch.ones_like(logprobs, dtype=torch.bool),
        ratio=log_ratio.detach().exp(),
    )


gradient.Config = GradientConfig


@dataclass(frozen=True)
class OffsetConfig:
    name: Literal["offset"] = "offset"
    baseline: float = 0.0


def offset(rewards, config):
    return (rewards - config.baseline).nan_to_num(0.0)


offset.Config = OffsetConfig
"""
MODULES = {"run_parts.py": MODULE, "run_algorithms.py": ALGORITHMS}
POINTS = {
    "parity.tasks": {"words": "run_parts:Words"},
    "parity.rewards": {"letters": "run_parts:Letters"},
    "parity.losses": {"gradient": "run_algorithms:gradient"},
    "parity.advantages": {"offset": "run_algorithms:offset"},
}
LETTERS = list("abcdefghijklm")


@pytest.fixture
def run_parts(tmp_path_factory: pytest.TempPathFactory):
    with installed(tmp_path_factory.mktemp("parts"), MODULES, POINTS):
        yield


@pytest.mark.usefixtures("run_parts")
def test_a_run_trains_on_tasks_and_rewards_of_another_package(
    tiny_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "mine.yaml"
    parts = [{"name": "letters", "alphabet": LETTERS, "weight": 2.0}, {"name": "exact"}]
    recipe.write_text(
        json.dumps(
            {
                "kind": "train",
                "defaults": ["finetune"],
                "steps": 2,
                "display": "none",
                "model": {"path": str(tiny_dir)},
                "tasks": {"name": "words", "letters": "abcdef"},
                "reward": {"name": "sum", "parts": parts},
                "advantage": {"name": "offset", "baseline": -1.0},
                "loss": {"name": "gradient", "scale": 0.5},
                "prompts": {"max_prompt_tokens": 16},
                "sampling": {"max_new_tokens": 6},
                "rollouts": {"groups_per_step": 2, "group_size": 4},
                "eval": {
                    "every_steps": None,
                    "num_tasks": 4,
                    "tasks": {"name": "words", "letters": "xyz", "size": 8},
                },
                "checkpoint": {"every_steps": None},
                "trackers": {"names": ["jsonl"]},
            }
        )
    )
    assert main(["train", str(recipe), "output.name=ours", "tasks.size=30"]) == 0
    folder = RunFolder(tmp_path / "runs/ours")
    summary = Summary.read(folder.path)
    assert (summary.status, summary.steps) == ("finished", 2)
    config = load_saved(folder.config_path)
    assert vars(config.tasks) == {"name": "words", "letters": "abcdef", "size": 30}
    lines = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
    steps = [line for line in lines if "train/loss" in line]
    assert [step["train/clip_fraction"] for step in steps] == [1.0, 1.0]
    episodes = [
        json.loads(line)
        for path in sorted(folder.episodes_dir.glob("step_*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert len(episodes) == 2 * 2 * 4
    for episode in episodes:
        share = sum(letter in LETTERS for letter in episode["response"]) / 6
        assert episode["reward_parts"]["letters"] == pytest.approx(share)
        assert episode["advantage"] == pytest.approx(episode["reward"] + 1.0)
    assert main(["resume", str(folder.path), "steps=3"]) == 0
    assert Summary.read(folder.path).steps == 3
