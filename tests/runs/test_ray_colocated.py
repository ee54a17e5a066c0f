"""Runs on a local Ray cluster whose roles take turns, and publications over a process group."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ray")

from runs.conftest import SHAPE
from runs.test_colocated import MEMORY, TIMES
from runs.test_ray import ON_RAY, clean, killed_while_training, rows, train, untimed, weights
from runs.test_train import assert_equal_weights

from parity.cli import main as cli
from parity.config.schema import TrainConfig
from parity.folder import RunFolder
from parity.models.tiny import save_tiny
from parity.observe.summary import Summary

ConfigOf = Callable[..., TrainConfig]
TURNS = (ON_RAY, "placement.kind=colocated", "rollouts.max_lag=0")
__all__ = ["clean"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pair_on_ray_equals_one_process_taking_turns_or_not_bit_for_bit(
    config_of: ConfigOf, clean: None
) -> None:
    words = ("steps=4", "checkpoint.every_steps=2", "eval.every_steps=2")
    runs = {
        "apart": train(config_of("rollouts.max_lag=0", *words), "apart"),
        "inline": train(
            config_of("placement.kind=colocated", "rollouts.max_lag=0", *words), "inline"
        ),
        "pair": train(config_of(*TURNS, *words), "pair"),
    }
    expected = weights(runs["apart"])
    for name in ("inline", "pair"):
        assert_equal_weights(expected, weights(runs[name]))
        told = [untimed(row) for row in rows(runs[name])]
        assert told == [untimed(row) for row in rows(runs["apart"])]
    for row in rows(runs["pair"]):
        assert all(row[name] > 0 for name in (*TIMES, *MEMORY)), row
    assert (
        "event=placed node 0: trainer 0 with engine 0; 1 CPU" in runs["pair"].log_path.read_text()
    )
    assert not [path for path in runs["pair"].path.iterdir() if "tmp" in path.name]


COLLECTIVE = (ON_RAY, "weights.transport=collective", "placement.engine_replicas=2")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_rank_and_two_engines_train_over_a_process_group(
    config_of: ConfigOf, clean: None
) -> None:
    folder = train(config_of(*COLLECTIVE, "steps=6", "rollouts.max_lag=1"), "collective")
    found = rows(folder)
    assert [row["publish/version"] for row in found] == list(range(1, 7))
    log = folder.log_path.read_text()
    assert "event=transport_chosen transport=collective" in log
    assert log.count("event=circle_begins") == 1  # one group served all publications
    assert cli.main(["audit", str(folder.path)]) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_engine_leaves_the_group_and_a_new_one_is_made(
    config_of: ConfigOf, clean: None
) -> None:
    words = ("steps=40", "rollouts.max_lag=1", "placement.engine_restarts=0")
    config = config_of(*COLLECTIVE, *words)
    killer = killed_while_training(config, "killed", "engine-1")
    assert killer.killed_s is not None, "the engine was never killed, so the test shows nothing"
    folder = RunFolder(Path(config.output.dir) / "killed")
    summary = Summary.read(folder.path)
    assert (summary.status, summary.steps) == ("finished", 40)
    log = folder.log_path.read_text()
    groups = [line for line in log.splitlines() if "event=circle_begins" in line]
    assert groups[0].endswith("engines=(0, 1)")
    assert groups[-1].endswith("engines=(0,)")
    assert [row["publish/version"] for row in rows(folder)] == list(range(1, 41))
    assert cli.main(["audit", str(folder.path)]) == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_sharded_pairs_and_a_mixed_run_train(config_of: ConfigOf, clean: None) -> None:
    words = ("steps=4", "checkpoint.every_steps=2", "rollouts.steps_per_publish=2")
    pairs = ("placement.trainer_ranks=2", "placement.engine_replicas=2")
    both = train(config_of(*TURNS, *pairs, *words), "both")
    mixed = ("placement.kind=mixed", "placement.engine_replicas=2")
    part = train(config_of(*TURNS, *mixed, *words), "part")
    places = {
        both: "node 0: trainer 0, 1 with engine 0, 1; 2 CPU",
        part: "node 0: trainer 0 with engine 0 + engine 1; 2 CPU",
    }
    for folder, line in places.items():
        found = rows(folder)
        assert [row["step"] for row in found] == [1, 2, 3, 4]
        assert all(row[name] > 0 for row in found for name in (*TIMES, *MEMORY))
        assert line in folder.log_path.read_text()
        assert cli.main(["audit", str(folder.path)]) == 0


WIDE = dataclasses.replace(
    SHAPE, hidden_size=256, intermediate_size=1024, num_layers=12, num_heads=4, head_dim=64
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_each_process_gives_up_after_its_turn_is_what_was_loaded_for_it(
    config_of: ConfigOf, tmp_path: Path, clean: None
) -> None:
    save_tiny(WIDE, seed=0, folder=tmp_path / "wide")
    folder = train(
        config_of(*TURNS, f"model.path={tmp_path / 'wide'}", "steps=10", "optimizer.lr=1e-5"),
        "memory",
    )
    size = sum(tensor.nbytes for tensor in weights(folder).values())  # of one set of weights
    # What must be there: at rest an engine has nothing of its two sets of weights (served; and
    # staged, which exists while it is awake), a trainer nothing of weights and two moments.
    # Everything else of a process (the interpreter, torch, heaps) stays within `slack` between
    # turns: the size of one set would show a copy that was kept.
    slack = size / 2
    warm = rows(folder)[2:]  # the first turns allocate what stays
    for name in ("device/after_engine_turn_bytes", "device/after_trainer_turn_bytes"):
        values = [row[name] for row in warm]
        assert max(values) - min(values) < slack, (name, values)
        assert values[-1] - values[0] < slack / 2, (name, values)
    for row in warm:
        freed = row["device/engine_turn_bytes"] - row["device/after_engine_turn_bytes"]
        assert freed > 0.9 * size, (freed, size)
        freed = row["device/trainer_turn_bytes"] - row["device/after_trainer_turn_bytes"]
        assert freed > 0.9 * 3 * size, (freed, size)
