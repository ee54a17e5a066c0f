"""A run that is killed at any write goes on from its checkpoint with a consistent ledger."""

import json
import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.ledger.simulation import Setup, Simulation, play

from parity.ledger.audit import Audit, audit
from parity.ledger.diff import compare
from parity.ledger.schema import DATABASE, is_made

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["unit.ledger.simulation"])
KILLED = -9
QUICK_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None
points = st.lists(st.integers(1, 260), min_size=1, max_size=3)


def child(dir: Path, setup: Setup, life: int, point: int | None, stop_step: int = 10**9) -> int:
    """Play in a process of its own, killed at a write, or soon after its checkpoint of a step."""
    process = PROCESSES.Process(target=play, args=(dir, setup, life, point))
    process.start()
    deadline = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < deadline and newest_step(dir) < stop_step:
        process.join(0.005)
    if process.is_alive():
        process.kill()
        process.join(10)
    assert process.exitcode in (0, KILLED), process.exitcode
    return process.exitcode


def newest_step(dir: Path) -> int:
    steps = [int(path.stem[5:]) for path in (dir / "checkpoints").glob("step_*.json")]
    return max(steps, default=0)


def played(dir: Path, setup: Setup, deaths: list[int]) -> Audit:
    """The audit of a run that died at these writes of its processes and then went on to the end.

    What every death leaves is audited too.
    """
    for life, point in enumerate(deaths):
        if child(dir, setup, life, point) == KILLED and is_made(dir / "ledger" / DATABASE):
            holds(audit(dir / "ledger"))
        elif (dir / "end.json").exists():
            break
    if not (dir / "end.json").exists():
        assert child(dir, setup, len(deaths), None) == 0
    found = holds(audit(dir / "ledger"))
    assert found.steps == setup.steps
    assert found.counts is not None
    assert found.counts.trained == setup.steps * setup.groups_per_step
    return found


def holds(found: Audit) -> Audit:
    assert found.holds, [(p.name, p.faults) for p in found.proofs if not p.holds]
    return found


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    dir = tmp_path_factory.mktemp("unbroken")
    return dir, Simulation(dir, Setup()).run()


@given(deaths=points)
@example(deaths=[1])
@example(deaths=[2, 5])
@settings(max_examples=15, deadline=None)
def test_a_synchronous_run_that_is_killed_anywhere_equals_the_unbroken_one(
    unbroken: tuple[Path, str], deaths: list[int]
):
    with tempfile.TemporaryDirectory(dir=QUICK_DISK) as name:
        dir = Path(name)
        played(dir, Setup(), deaths)
        assert json.loads((dir / "end.json").read_text())["weights"] == unbroken[1]
        comparison = compare(unbroken[0] / "ledger", dir / "ledger")
        assert comparison.first is None, comparison.first


@given(seed=st.integers(0, 10**6), deaths=points, max_lag=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_an_asynchronous_run_that_is_killed_anywhere_loses_and_repeats_nothing(
    seed: int, deaths: list[int], max_lag: int
):
    with tempfile.TemporaryDirectory(dir=QUICK_DISK) as name:
        played(Path(name), Setup(seed=seed, max_lag=max_lag), deaths)


def test_a_run_killed_from_outside_at_any_time_loses_and_repeats_nothing(tmp_path: Path):
    setup = Setup(seed=5, steps=120, max_lag=2, every_steps=3)
    num_killed = 0
    for life, more in enumerate((6, 9, 15, 3)):
        stop_step = newest_step(tmp_path) + more  # so that each life has opened the ledger
        num_killed += child(tmp_path, setup, life, None, stop_step) == KILLED
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "ledger", tmp_path / "copy")
        holds(audit(tmp_path / "copy"))
    assert num_killed >= 2
    assert child(tmp_path, setup, 9, None) == 0
    assert holds(audit(tmp_path / "ledger")).resumes == 4


def test_groups_that_a_killed_process_finished_are_reused(tmp_path: Path):
    setup = Setup(max_lag=2, steps=8, every_steps=2)
    first = Simulation(tmp_path, setup)
    for _ in range(5):
        first.step()
    first.ledger.close()  # one step after its checkpoint of step 4
    second = Simulation(tmp_path, setup)
    assert second.version == 4
    inherited = {group.index for group in second.again}
    assert inherited
    second.run()
    assert second.num_reused > 0
    holds(audit(tmp_path / "ledger"))
