"""Trainer ranks as real processes over gloo, against one rank that is alone."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from unit.training.parallel import ranks
from unit.training.tiny import tiny_model

from parity.errors import ConfigError
from parity.training.config import ParallelConfig
from parity.training.layout import share_out
from parity.training.parallel.fsdp import layers_of, mesh_shape

RTOL, ATOL = 2e-5, 2e-6
LOGPROBS = "logprobs of all samples"
# A server that has imported torch and the model's code starts each rank in milliseconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "parity.training.trainer",
        "parity.training.parallel.fsdp",
        *(f"transformers.models.{name}.modeling_{name}" for name in ("qwen3", "llama", "gpt2")),
    ]
)


def train(folder: Path, name: str, *, size: int = 1, steps: int = 5, case: str = "ragged", **job):
    """The weights and metrics after `steps` steps on `size` ranks."""
    out = folder / f"{name}.safetensors"
    fields = {"size": size, "store": str(folder / f"{name}.store"), "out": str(out)}
    fields |= {"steps": steps, "case": case} | job
    processes = [
        FORKS.Process(target=ranks.run, args=({"rank": rank} | fields,)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for rank, process in enumerate(processes):
        process.join(timeout=150)
        assert process.exitcode == 0, f"rank {rank} of {name} ended with {process.exitcode}"
    return load_file(out), json.loads(out.with_suffix(".json").read_text())


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        loose = 100 if name == LOGPROBS else 1  # sums of many weights
        torch.testing.assert_close(
            found[name],
            tensor,
            rtol=loose * RTOL,
            atol=loose * ATOL,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Weights and metrics of one rank, by case, computed once each."""
    folder, found = tmp_path_factory.mktemp("alone"), {}

    def of(case: str = "ragged", **job):
        key = (case, json.dumps(job, sort_keys=True))
        if key not in found:
            found[key] = train(folder, f"n{len(found)}", case=case, **job)
        return found[key]

    return of


MESHES = [
    {"size": 2},
    {"size": 4},
    {"size": 4, "replicate": 2, "shard": 2},
    {"size": 2, "replicate": 2, "shard": 1},
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_mesh_gives_the_weights_of_one_rank(tmp_path, alone, mesh):
    weights, metrics = train(tmp_path, "mesh", **mesh)
    expected, lone = alone()
    assert_equal(weights, expected)
    for name in ("train/loss", "train/grad_norm", "train/entropy", "train/tokens"):
        assert metrics[name] == pytest.approx(lone[name], rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    ("case", "job"),
    [
        ("one_sample", {}),
        ("idle", {}),
        ("ragged", {"tied": False}),
        ("ragged", {"sharing": "off", "max_tokens": 24}),
        ("ragged", {"gradient_checkpointing": True}),
    ],
)
def test_hard_batches_and_settings_on_two_ranks(tmp_path, alone, case, job):
    weights, _ = train(tmp_path, "two", size=2, case=case, **job)
    assert_equal(weights, alone(case, **job)[0])


def test_parameters_can_rest_on_the_host(tmp_path, alone):
    weights, _ = train(tmp_path, "offload", size=2, cpu_offload=True)
    assert_equal(weights, alone()[0])


@pytest.mark.parametrize(
    "reader", [{"size": 1}, {"size": 2}, {"size": 4, "replicate": 2, "shard": 2}], ids=str
)
def test_a_checkpoint_of_four_ranks_goes_on_with_any_number(tmp_path, alone, reader):
    train(tmp_path, "writer", size=4, steps=3, save=str(tmp_path / "checkpoint"))
    weights, _ = train(tmp_path, "reader", load=str(tmp_path / "checkpoint"), **reader)
    assert_equal(weights, alone()[0])


@pytest.mark.parametrize(
    "writer",
    [{"size": 2}, pytest.param({"size": 4, "replicate": 2}, marks=pytest.mark.slow)],
    ids=str,
)
def test_ranks_write_beside_their_steps_what_they_were_before_them(tmp_path, writer):
    folder = tmp_path / "checkpoint"
    job = {"save_beside": str(folder), "steps": 1} | writer
    straight, _ = train(tmp_path, "straight", **job)  # takes 4 more steps, two beside each write
    again, _ = train(tmp_path, "again", steps=5, load=str(folder / "second"), **writer)
    assert all(torch.equal(again[name], tensor) for name, tensor in straight.items())


def test_a_checkpoint_of_one_rank_goes_on_with_two(tmp_path, alone):
    train(tmp_path, "writer", steps=3, save=str(tmp_path / "checkpoint"))
    weights, _ = train(tmp_path, "reader", size=2, load=str(tmp_path / "checkpoint"))
    assert_equal(weights, alone()[0])


def test_a_mesh_that_does_not_multiply_to_the_ranks_is_refused():
    assert mesh_shape(ParallelConfig(replicate=2), 6) == (2, 3)
    with pytest.raises(ConfigError, match=r"replicate=2 x shard=null|replicate=2 x shard=None"):
        mesh_shape(ParallelConfig(replicate=2), 5)
    with pytest.raises(ConfigError, match="there are 8 trainer ranks"):
        mesh_shape(ParallelConfig(replicate=2, shard=2), 8)


def test_layers_are_the_blocks_of_the_model():
    for family in ("qwen3", "llama", "gemma2", "gpt2"):
        assert len(layers_of(tiny_model(family))) == 2


def test_rows_are_shared_out_evenly_and_the_same_way_everywhere():
    shares = share_out([9, 8, 1, 1, 1, 5], 2)
    assert shares == [[0, 2, 3, 4], [1, 5]]
    assert share_out([], 3) == [[], [], []]
