"""The stored config reads back equal, and says so where it can't."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.config.compose import load, load_train
from parity.config.saved import load_saved, save
from parity.config.schema import TrainConfig
from parity.errors import ConfigError
from parity.models.config import ModelConfig
from parity.tasks.config import ReasoningGymConfig


@pytest.mark.parametrize("recipe", ["quickstart", "finetune", "sft_quickstart"])
def test_what_is_saved_reads_back_equal(tmp_path: Path, recipe: str):
    config = load(recipe)
    save(config, tmp_path / "config.yaml")
    assert load_saved(tmp_path / "config.yaml") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_texts_that_yaml_or_hydra_would_read_otherwise_survive(tmp_path: Path):
    config = TrainConfig(
        model=ModelConfig(path="1e5", chat_template="{% if x %}\n${not: me}\n{% endif %}: é"),
        tasks=ReasoningGymConfig(dataset="off", suffix=" \t", settings={"off": "null", "x": 1e-7}),
    )
    save(config, tmp_path / "config.yaml")
    assert load_saved(tmp_path / "config.yaml") == config


ODD = "\\${}a: '\"\n#%"  # what YAML or Hydra might read as more than itself


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.sampled_from(ODD), max_size=12))
def test_any_text_survives(tmp_path: Path, text: str):
    config = TrainConfig(tasks=ReasoningGymConfig(suffix=text, settings={"x": [text]}))
    save(config, tmp_path / "config.yaml")
    assert load_saved(tmp_path / "config.yaml") == config


def test_texts_survive_hydra_too_when_the_saved_config_is_used_as_a_recipe(tmp_path: Path):
    noise = random.Random(0)
    texts = ["".join(noise.choices(ODD, k=noise.randrange(12))) for _ in range(300)]
    config = TrainConfig(tasks=ReasoningGymConfig(suffix="${x}", settings={"x": [*texts]}))
    save(config, tmp_path / "config.yaml")
    assert load_train(str(tmp_path / "config.yaml")) == config


def test_a_saved_config_is_a_recipe_that_takes_overrides(tmp_path: Path):
    config = load("quickstart")
    save(config, tmp_path / "config.yaml")
    assert load_train(str(tmp_path / "config.yaml")) == config
    assert load_train(str(tmp_path / "config.yaml"), ["steps=500"]).steps == 500


def test_a_missing_or_altered_file_is_refused(tmp_path: Path):
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match="doesn't exist"):
        load_saved(path)
    path.write_text("steps: 3\n")
    with pytest.raises(ConfigError, match="kind is missing"):
        load_saved(path)
    path.write_text("kind: train\nstepz: 3\n")
    with pytest.raises(ConfigError, match="Did you mean steps"):
        load_saved(path)
