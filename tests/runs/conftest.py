"""A tiny model and a small task file, made once per session."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.config.arithmetic import check
from parity.config.compose import load_train
from parity.config.schema import TinyModelConfig, TrainConfig
from parity.models.tiny import save_tiny

SHAPE = TinyModelConfig(
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_length=64,
)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny model as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_tiny(SHAPE, seed=0, folder=folder)
    return folder


@pytest.fixture(scope="session")
def tasks_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty plain tasks; the answer is one of the letters of the prompt."""
    path = tmp_path_factory.mktemp("tasks") / "letters.jsonl"
    noise = random.Random(0)
    rows = []
    for number in range(40):
        word = "".join(noise.choice("abcdef") for _ in range(3 + number % 3))
        rows.append(json.dumps({"prompt": f"{word}:", "answer": word[0]}))
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def config_of(tiny_dir: Path, tasks_path: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """A small training configuration with overrides."""

    def make(*words: str) -> TrainConfig:
        config = load_train(
            "finetune",
            [
                f"model.path={tiny_dir}",
                f"tasks.path={tasks_path}",
                "tasks.chat=false",
                f"output.dir={tmp_path}",
                "display=none",
                "trackers.names=[jsonl]",
                "steps=4",
                "reward.name=python",
                f"reward.function={Path(__file__).parent / 'graders.py'}:letters",
                "sampling.max_new_tokens=6",
                "prompts.max_prompt_tokens=16",
                "rollouts.groups_per_step=4",
                "rollouts.group_size=4",
                "optimizer.lr=1e-3",
                "eval.num_tasks=4",
                "eval.every_steps=null",
                "checkpoint.every_steps=null",
                *words,
            ],
        )
        check(config)
        return config

    return make
