"""Offload and reload: the same bits, refusals in between, nothing lost when one fails."""

import errno
from pathlib import Path

import pytest
import torch
from unit.training.tiny import ragged_samples, tiny_model, tiny_trainer

from parity.errors import TrainingError
from parity.platforms.memory.shelf import Shelf
from parity.training.trainer import Trainer


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    tensors = dict(trainer.named_weights()) | trainer._tensors()  # pyright: ignore[reportPrivateUsage]
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_steps_after_a_reload_equal_steps_without(family: str, tmp_path: Path) -> None:
    plain = tiny_trainer(tiny_model(family))
    rested = tiny_trainer(tiny_model(family), rest_dir=tmp_path)
    for number in range(3):
        samples = ragged_samples(seed=number)
        plain.step(samples)
        rested.offload(keeps_weights=True)
        rested.offload()
        rested.reload()
        rested.step(samples)
        before = state_of(rested)
        rested.offload()
        rested.reload()
        assert_equal(state_of(rested), before)
        assert_equal(state_of(rested), state_of(plain))
    assert not list(tmp_path.iterdir())


def test_gradients_rest_too(tmp_path: Path) -> None:
    trainer = tiny_trainer(rest_dir=tmp_path)
    parameters = list(trainer.model.parameters())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 3.0)
    trainer.offload()
    trainer.reload()
    assert all(bool((parameter.grad == 3.0).all()) for parameter in parameters)


def test_what_needs_the_state_is_refused_while_it_rests(tmp_path: Path) -> None:
    trainer = tiny_trainer(rest_dir=tmp_path)
    samples = ragged_samples()
    trainer.offload(keeps_weights=True)
    assert trainer.named_weights()
    with pytest.raises(TrainingError, match=r"a step .*call reload"):
        trainer.step(samples)
    trainer.offload()
    for call in (
        trainer.named_weights,
        trainer.weights,
        lambda: trainer.logprobs_of(samples),
        lambda: trainer.save(tmp_path / "x"),
        lambda: trainer.load(tmp_path / "x"),
    ):
        with pytest.raises(TrainingError, match="rest elsewhere"):
            call()
    trainer.reload()
    trainer.step(samples)


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space"), RuntimeError("no memory")])
def test_a_fault_leaves_everything_in_one_place(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny_trainer(rest_dir=tmp_path)
    trainer.step(ragged_samples())
    before = state_of(trainer)

    def fail(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr("parity.platforms.memory.shelf._File.write", fail)
        with pytest.raises(TrainingError, match="weights and optimizer are unchanged"):
            trainer.offload()
    assert_equal(state_of(trainer), before)
    trainer.offload()
    with monkeypatch.context() as patch:
        patch.setattr("parity.platforms.memory.shelf._File.read", fail)
        with pytest.raises(TrainingError, match="rest on unchanged"):
            trainer.reload()
    trainer.reload()
    assert_equal(state_of(trainer), before)


def test_views_and_ties_come_back_whole(tmp_path: Path) -> None:
    whole = torch.arange(100_000, dtype=torch.float32)
    part, expected = whole.view(100, 1000)[3:7].t(), whole.clone()
    shelf = Shelf(torch.device("cpu"), folder=tmp_path)
    shelf.put([part, whole])
    assert shelf.size_bytes == whole.nbytes
    assert float(whole.abs().sum()) < float(expected.sum())  # its pages are really gone
    assert torch.equal(shelf.value(part), expected.view(100, 1000)[3:7].t())
    shelf.take_back()
    assert torch.equal(whole, expected)
    assert shelf.is_empty
    shelf.close()
