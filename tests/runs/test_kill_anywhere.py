"""A run is killed at seeded random points and resumed until it has finished: nothing is lost.

After every death and at the end the audit is clean. The synchronous run ends equal to one that
was never killed: weights, numbers and the ledger's lines, bit for bit.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from runs.mortal import (
    NEVER,
    Death,
    assert_clean,
    assert_finished,
    parity,
    untimed,
    words_of,
)
from safetensors.torch import load_file

from parity.ledger.diff import compare
from parity.ledger.schema import DATABASE, is_made

KILLED, DONE, UNUSABLE, NOTHING_TO_DO = -9, 0, 2, 3
# Place -> the highest call of it in a whole run: 12 groups, 6 steps, 3 checkpoints.
WHILE_TRAINING = {
    "a group is generated": 12,
    "a group is scored": 12,
    "a group is admitted": 12,
    "a group is issued": 12,
    "a payload is half written": 4,
    "a step is computed": 6,
    "a step is recorded": 6,
    "weights are published": 6,
    "a step is reported": 6,
    "the state is taken": 3,
    "the ledger is flushed": 3,
    "the weights are saved": 3,
    "the checkpoint is sealed": 3,
    "the checkpoint is renamed": 3,
    "the checkpoint is committed": 3,
    "old checkpoints are pruned": 3,
    "old payloads are retired": 3,
    "the model is exported": 1,
    "the ledger is made": 1,
}
WHILE_RESUMING = (
    "the ledger is forked",
    "the ledger is recovered",
    "a checkpoint is loaded",
    "a group is reused",
    "a step is computed",
)
NUM_POINTS = 20
FEW = (4, 10)


@dataclass(frozen=True)
class Point:
    """The deaths of one run: the first while it trains, others while it is resumed."""

    deaths: tuple[Death, ...]

    @classmethod
    def of(cls, seed: int, usual_s: float) -> "Point":
        """By time or by place, with one more death during the resume in two of three."""
        noise = random.Random(seed)
        first = Death(after_s=noise.uniform(0.2, usual_s))
        if seed % 3:
            place = list(WHILE_TRAINING)[(seed * 7) % len(WHILE_TRAINING)]
            first = Death(place, nth=noise.randint(1, WHILE_TRAINING[place]))
        second = Death(noise.choice(WHILE_RESUMING))
        if seed % 4 == 1:
            second = Death(after_s=noise.uniform(0.2, usual_s))
        return cls((first, second) if seed % 3 != 2 else (first,))


@pytest.fixture(scope="module")
def unbroken(
    tiny_dir: Path, tasks_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], tuple[Path, float]]:
    """The run that nobody kills, by `max_lag`, and the seconds that it took."""
    cwd, found = tmp_path_factory.mktemp("unbroken"), dict[int, tuple[Path, float]]()

    def of(max_lag: int) -> tuple[Path, float]:
        if max_lag not in found:
            words = words_of(tiny_dir, tasks_path, f"lag{max_lag}", f"rollouts.max_lag={max_lag}")
            if not found:
                parity("--version", cwd=cwd)  # the server's start isn't the run's
            ended = parity(*words, cwd=cwd)
            assert ended.code == DONE, ended.said
            found[max_lag] = cwd / "runs" / f"lag{max_lag}", ended.seconds
        return found[max_lag]

    return of


def survives(point: Point, words: list[str], cwd: Path) -> Path:
    """Kill the run as the point says, resume until it has finished; its folder."""
    folder = cwd / "runs" / "mortal"
    ended = parity(*words, cwd=cwd, death=point.deaths[0])
    if point.deaths[0].place is not None:
        assert ended.code == KILLED, f"{point} was never reached: {ended}"
    for death in (*point.deaths[1:], NEVER, NEVER, NEVER):
        if ended.code in (DONE, NOTHING_TO_DO):  # killed between its last file and its exit
            return folder
        assert ended.code == KILLED, ended
        if not (folder / "config.yaml").is_file():  # killed before there was a run
            return begun_anew(words, folder, cwd)
        if is_made(folder / "ledger" / DATABASE):
            assert_clean(folder)
        ended = parity("resume", "mortal", cwd=cwd, death=death)
    raise AssertionError(f"{point} doesn't end: {ended}")


def begun_anew(words: list[str], folder: Path, cwd: Path) -> Path:
    """Nothing had happened: `resume` says so in one sentence, and another run does the work."""
    ended = parity("resume", str(folder), cwd=cwd)
    assert ended.code == UNUSABLE, ended
    assert "parity: " in ended.said
    name = "output.name=mortal"
    assert parity(*[*words, name + "2"], cwd=cwd).code == DONE
    return folder.with_name("mortal2")


def assert_equal(folder: Path, other: Path) -> None:
    left, right = (load_file(each / "model" / "model.safetensors") for each in (folder, other))
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
    rows = zip(untimed(folder), untimed(other), strict=True)
    assert [
        (row["step"], name, row.get(name), wanted.get(name))
        for row, wanted in rows
        for name in row | wanted
        if name not in row or row.get(name) != wanted.get(name)
    ] == []
    found = compare(folder / "ledger", other / "ledger")
    assert found.first is None, found


def points(numbers: tuple[int, ...]) -> list[object]:
    """All of them; the others than `numbers` run with the slow tests."""
    return [
        pytest.param(n, marks=[] if n in numbers else [pytest.mark.slow]) for n in range(NUM_POINTS)
    ]


@pytest.mark.parametrize("seed", points(FEW))
def test_an_asynchronous_run_killed_anywhere_loses_and_repeats_nothing(
    unbroken: Callable[[int], tuple[Path, float]],
    tiny_dir: Path,
    tasks_path: Path,
    tmp_path: Path,
    seed: int,
) -> None:
    _, usual_s = unbroken(1)
    words = words_of(tiny_dir, tasks_path, "mortal", "rollouts.max_lag=1")
    assert_finished(survives(Point.of(seed, usual_s), words, tmp_path))


@pytest.mark.parametrize("seed", points((7, 14)))
def test_a_synchronous_run_killed_anywhere_equals_the_unbroken_one_bit_for_bit(
    unbroken: Callable[[int], tuple[Path, float]],
    tiny_dir: Path,
    tasks_path: Path,
    tmp_path: Path,
    seed: int,
) -> None:
    whole, usual_s = unbroken(0)
    words = words_of(tiny_dir, tasks_path, "mortal", "rollouts.max_lag=0")
    folder = survives(Point.of(seed, usual_s), words, tmp_path)
    assert_finished(folder)
    assert_equal(folder, whole)
