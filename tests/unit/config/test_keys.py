"""The list of keys is read off the dataclasses."""

import pytest

from parity.config import keys
from parity.config.schema import SftConfig, TrainConfig
from parity.errors import ConfigError


def test_every_leaf_is_listed_once_with_the_names_that_have_it():
    leaves = {key.path: key for key in keys.leaves(TrainConfig)}
    assert len(leaves) == len(keys.leaves(TrainConfig)) > 80
    assert leaves["tasks.dataset"].owners == ("reasoning_gym",)
    assert leaves["tasks.path"].owners == ("jsonl", "parquet")
    assert leaves["tasks.chat"].owners == ()
    assert leaves["eval.tasks.path"].owners == ("jsonl", "parquet")
    assert leaves["optimizer.lr"].owners == ()
    assert "tasks" not in leaves
    assert "tiny_model.num_layers" in {key.path for key in keys.leaves(SftConfig)}


def test_every_listed_key_is_accepted():
    for schema in (TrainConfig, SftConfig):
        for key in keys.walk(schema):
            keys.require(schema, key.path)


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("optimizer.l", "optimizer.lr"),
        ("sampling.temprature", "sampling.temperature"),
        ("group_size", "rollouts.group_size"),
        ("rollots.max_lag", "rollouts.max_lag"),
        ("temperature", "one of sampling.temperature, eval.temperature?"),
        ("checkpoint.zzz", "Keys of checkpoint: every_steps, keep"),
    ],
)
def test_the_nearest_key_is_offered(path: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        keys.require(TrainConfig, path, "1")
    assert hint in str(caught.value)
