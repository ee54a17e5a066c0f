"""Checkpoints written beside the training: a kill at any moment, and ranks that write together."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs.mortal import Death, assert_clean, assert_finished, parity, words_of
from runs.test_kill_anywhere import assert_equal
from runs.test_ray import train, weights

from parity import launch
from parity.config.schema import TrainConfig
from parity.errors import CheckpointError
from parity.folder import RunFolder
from parity.observe.summary import Summary
from parity.training import state
from parity.training.checkpoint import CheckpointStore

KILLED, DONE = -9, 0
DEATHS = [
    Death("the weights are saved", nth=2),  # while a later step is computed
    Death("the checkpoint is sealed"),
    Death("the checkpoint is renamed", nth=2),
    Death("the checkpoint is committed", nth=2),
    Death("old checkpoints are pruned", nth=3),
    Death("a step is computed", nth=5),
]


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_run_killed_beside_its_write_equals_the_unbroken_synchronous_one(
    tiny_dir: Path, tasks_path: Path, tmp_path: Path, death: Death
) -> None:
    def words(name: str, *more: str) -> list[str]:
        return words_of(tiny_dir, tasks_path, name, "rollouts.max_lag=0", *more)

    runs = tmp_path / "runs"
    assert parity(*words("whole"), cwd=tmp_path).code == DONE
    beside = words("beside", "checkpoint.asynchronous=true")
    ended = parity(*beside, cwd=tmp_path, death=death)
    assert ended.code == KILLED, ended
    assert_clean(runs / "beside")
    for checkpoint in CheckpointStore(runs / "beside" / "checkpoints", 9).complete():
        assert (checkpoint.path / "model.safetensors").is_file()
    assert parity("resume", "beside", cwd=tmp_path).code == DONE
    assert_finished(runs / "beside")
    assert_equal(runs / "beside", runs / "whole")
    kept = [each.step for each in CheckpointStore(runs / "beside" / "checkpoints", 9).complete()]
    assert kept == [4, 6]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_of_other_processes_write_beside_their_steps(
    config_of: Callable[..., TrainConfig],
) -> None:
    words = ("rollouts.max_lag=0", "schedule.shape=constant", "optimizer.eps=1e-5")
    ranks = (*words, "runtime=ray", "placement.trainer_ranks=2", "checkpoint.every_steps=1")
    straight = train(config_of(*ranks, "steps=4"), "straight")
    beside = train(config_of(*ranks, "steps=3", "checkpoint.asynchronous=true"), "beside")
    assert [each.step for each in CheckpointStore(beside.checkpoints_dir, 9).complete()] == [2, 3]
    assert_clean(beside.path)
    assert launch.resume(beside.path, ["steps=4"]) == 0
    assert_clean(beside.path)
    ours, theirs = weights(straight), weights(beside)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(
    config_of: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = state.save_model, itertools.count(1)

    def full(path: Path, *rest: Any) -> None:
        if next(calls) == 2:
            path.joinpath("model.safetensors").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(path, *rest)

    monkeypatch.setattr(state, "save_model", full)
    words = ("steps=20", "checkpoint.every_steps=2", "checkpoint.asynchronous=true")
    config = config_of(*words)
    with pytest.raises(CheckpointError, match=r"step 4 can't be written.*No space left.*Free disk"):
        train(config, "full")
    folder = RunFolder(Path(config.output.dir) / "full")
    assert Summary.read(folder.path).status == "failed"
    assert [path.name for path in folder.checkpoints_dir.iterdir()] == ["step_00000002"]
    assert_clean(folder.path)
    assert launch.resume(folder.path, ["steps=5"]) == 0
    assert [each.step for each in CheckpointStore(folder.checkpoints_dir, 9).complete()] == [4, 5]
    assert_clean(folder.path)
