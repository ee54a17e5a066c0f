"""The shipped warm checkpoint is what `sft_quickstart` makes."""

from pathlib import Path

import pytest

from parity.config.compose import load_sft
from parity.config.schema import ModelConfig
from parity.models.loading import load_model, load_tokenizer
from parity.models.tiny import make_tiny
from parity.observe.summary import Summary
from parity.observe.trackers.jsonl import read_rows
from parity.sft.command import sft

SHIPPED = ModelConfig(path="parity://quickstart")


def test_the_shipped_model_has_the_shape_and_the_tokenizer_of_its_recipe() -> None:
    shape = load_sft("sft_quickstart").tiny_model
    assert shape is not None
    fresh, characters = make_tiny(shape, seed=0)
    shipped = load_model(SHIPPED, dtype="float32", device="cpu")
    assert {n: t.shape for n, t in shipped.state_dict().items()} == {
        n: t.shape for n, t in fresh.state_dict().items()
    }
    assert load_tokenizer(SHIPPED).get_vocab() == characters.get_vocab()


def fitted(tmp_path: Path, *words: str) -> Summary:
    config = load_sft(
        "sft_quickstart",
        [f"output.dir={tmp_path}", "output.name=sft", "display=none", *words],
    )
    assert sft(config, recipe="sft_quickstart") == 0
    return Summary.read(tmp_path / "sft")


def test_the_recipe_begins_to_learn_within_seconds(tmp_path: Path) -> None:
    summary = fitted(tmp_path, "steps=30", "schedule.warmup_steps=10", "eval.num_tasks=16")
    assert summary.steps == 30
    rows = read_rows(tmp_path / "sft" / "metrics.jsonl")
    losses = [loss for row in rows if (loss := row.get("train/loss")) is not None]
    assert len(losses) == 30
    assert losses[0] > 4.0  # log of 100 characters
    assert losses[-1] < 2.9


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_rebuilt_checkpoint_starts_as_low_as_the_quickstart_needs(tmp_path: Path) -> None:
    summary = fitted(tmp_path, "eval.num_tasks=512")
    assert summary.eval_first is not None
    assert summary.eval_last is not None
    assert summary.eval_first <= 0.02
    assert 0.15 <= summary.eval_last <= 0.4
