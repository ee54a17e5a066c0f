"""The stored config reads back equal, and says so where it can't."""

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


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.sampled_from("\\${}a: '\"\n#%?"), max_size=12))
def test_any_text_survives_saving_as_it_is_and_as_a_recipe(tmp_path: Path, text: str):
    config = TrainConfig(tasks=ReasoningGymConfig(suffix=text, settings={"x": [text]}))
    save(config, tmp_path / "config.yaml")
    assert load_saved(tmp_path / "config.yaml") == config
    if text != "???":  # which is how Hydra writes a missing value
        assert load(str(tmp_path / "config.yaml")) == config


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
