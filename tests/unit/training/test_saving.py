"""Checkpoints that are written beside the training: same bytes, one at a time, never lost."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest
import torch
from unit.training.tiny import ragged_samples, tiny_model, tiny_trainer

from parity.errors import CheckpointError
from parity.training.checkpoint import CheckpointStore
from parity.training.saving import Saving

ANYTHING = contextlib.nullcontext()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".metadata"  # holds an id of the write
    }


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_a_copy_written_later_is_the_checkpoint_of_its_moment(tmp_path, family):
    trainer = tiny_trainer(tiny_model(family))
    trainer.step(ragged_samples(seed=1))
    trainer.save(tmp_path / "at once")
    write = trainer.stage()
    torch.rand(3)
    trainer.step(ragged_samples(seed=2))  # neither weights, moments, step nor random state leak in
    write(tmp_path / "later")
    assert contents(tmp_path / "later") == contents(tmp_path / "at once")


def test_training_on_from_a_copy_gives_the_same_bits(tmp_path):
    trainer, other = tiny_trainer(), tiny_trainer()
    for step in range(2):
        trainer.step(ragged_samples(seed=step))
    write = trainer.stage()
    thread = threading.Thread(target=write, args=(tmp_path,))
    thread.start()  # while these steps are taken
    for step in range(2, 4):
        trainer.step(ragged_samples(seed=step))
    thread.join(60)
    other.load(tmp_path)
    assert other.step_index == 2
    for step in range(2, 4):
        other.step(ragged_samples(seed=step))
    weights = dict(trainer.named_weights())
    assert all(torch.equal(weights[name], each) for name, each in other.named_weights())


def test_a_write_is_over_only_when_it_is_complete():
    async def run() -> None:
        saving, may_end = Saving(), threading.Event()
        saving.begin(3, lambda: may_end.wait(60), due=ANYTHING)
        await asyncio.sleep(0)
        assert await saving.look() is None
        may_end.set()
        assert await saving.end() == 3
        assert await saving.end() is None
        assert await saving.look() is None

    asyncio.run(run())


def test_what_went_wrong_is_raised_at_the_next_look_and_leaves_no_partial_folder(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, lambda folder: (folder / "weights").write_text("old"), {})

    def fails(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    async def run() -> None:
        saving = Saving()
        saving.begin(2, lambda: store.save(2, fails, {}), due=ANYTHING)
        with pytest.raises(CheckpointError, match="No space left"):
            while True:
                await asyncio.sleep(0.01)
                await saving.look()
        assert await saving.end() is None

    asyncio.run(run())
    assert [each.step for each in store.complete()] == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]


def test_a_run_that_ends_by_an_error_waits_for_the_write_a_while():
    async def run() -> None:
        saving, may_end, has_ended = Saving(), threading.Event(), threading.Event()

        def write() -> None:
            may_end.wait(60)
            has_ended.set()

        saving.begin(1, write, due=ANYTHING)
        await saving.leave(timeout_s=0.05)
        assert not has_ended.is_set()
        may_end.set()
        await saving.leave(timeout_s=60)
        assert has_ended.is_set()

    asyncio.run(run())
