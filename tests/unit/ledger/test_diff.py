"""The first difference of two runs is found, whatever it is, and equal runs are equal."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import fakes
import pytest
from unit.ledger.simulation import CONFIG, Setup, Simulation

from parity.ledger.diff import compare
from parity.ledger.recovery import create_ledger
from parity.ledger.schema import DATABASE
from parity.types import RewardResult, Scored

SETUP = Setup(steps=5, every_steps=2)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dir = tmp_path_factory.mktemp("one")
    Simulation(dir, SETUP).run()
    return dir / "ledger"


@pytest.fixture
def copy(one: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one, tmp_path / "copy"))


def test_runs_of_one_seed_are_equal_even_with_other_checkpoints_and_a_resume(
    one: Path, tmp_path: Path
):
    other = replace(SETUP, every_steps=1)
    first = Simulation(tmp_path, other)
    for _ in range(3):
        first.step()
    first.ledger.close()
    Simulation(tmp_path, other).run()
    found = compare(one, tmp_path / "ledger")
    assert found.first is None
    assert found.num_compared > 60
    assert found.num_different == 0


def test_runs_of_different_seeds_differ_first_where_sampling_begins(one: Path, tmp_path: Path):
    Simulation(tmp_path, replace(SETUP, seed=1)).run()
    found = compare(one, tmp_path / "ledger").first
    assert found is not None
    assert found.title == "episode 0/0 generated"
    assert all("token" in line for line in found.details)


def test_a_shorter_run_differs_where_it_ends(one: Path, tmp_path: Path):
    Simulation(tmp_path, replace(SETUP, steps=4)).run()
    for pair in ((one, tmp_path / "ledger"), (tmp_path / "ledger", one)):
        found = compare(*pair).first
        assert found is not None
        assert found.kind == "issued"
        assert (found.left is None) == (pair[1] == one)


@pytest.mark.parametrize(
    ("statement", "title"),
    [
        ("UPDATE scored SET results = json_replace(results, '$[1]', 0.25) WHERE group_index = 2",
         "episode 2/1 scored"),
        ("UPDATE generated SET episodes = json_replace(episodes, '$[1][0]', 7)"
         " WHERE group_index = 2", "episode 2/1 generated"),
        ("UPDATE scored SET results = '[]' WHERE group_index = 2", "group 2 scored"),
        ("UPDATE steps SET version = 0 WHERE step = 3", "step 3"),
        ("UPDATE trained SET step = 5 WHERE step = 2", "group "),
        ("UPDATE issued SET task = 'other' WHERE group_index = 4", "group 4 issued"),
        ("DELETE FROM admitted WHERE seq = (SELECT MAX(seq) FROM admitted)", "group "),
    ],
)  # fmt: skip
def test_one_changed_event_is_the_one_that_is_named(
    one: Path, copy: Path, statement: str, title: str
):
    with closing(sqlite3.connect(copy / DATABASE, isolation_level=None)) as connection:
        connection.execute(statement)
        assert connection.total_changes
    found = compare(one, copy)
    assert found.first is not None
    assert found.first.title.startswith(title)
    assert compare(copy, one).num_different == found.num_different


def lone_group(dir: Path, tokens: tuple[int, ...], advantage: float, reward: RewardResult) -> Path:
    with create_ledger(dir, max_lag=0, config=CONFIG) as ledger:
        ledger.issued(0, task=fakes.task(0), position=0, epoch=0, size=1)
        ledger.generated(0, [fakes.episode(fakes.task(0), *tokens)])
        ledger.scored(0, [reward])
        ledger.admitted(0)
        ledger.trained(1, version=0, advantages={0: [advantage]})
    return dir


def test_the_payloads_say_which_token_and_which_advantage_differ(tmp_path: Path):
    made = lone_group(tmp_path / "a", (4, 5, 6), 0.5, Scored(1.0))
    found = compare(made, lone_group(tmp_path / "b", (4, 9, 6), 0.5, Scored(1.0))).first
    assert found is not None
    assert found.details == (
        "token 4 is 5 (version 0, log-prob -0.5)",
        "token 4 is 9 (version 0, log-prob -0.5)",
    )
    found = compare(made, lone_group(tmp_path / "c", (4, 5), 0.5, Scored(1.0))).first
    assert found is not None
    assert found.details[0] == "6 tokens, equal up to the shorter end"
    found = compare(made, lone_group(tmp_path / "d", (4, 5, 6), -0.5, Scored(1.0))).first
    assert found is not None
    assert found.title == "step 1"
    assert found.details == ("group 0 has advantages [0.5]", "group 0 has advantages [-0.5]")


def test_a_damaged_payload_is_told_beside_the_difference(tmp_path: Path):
    left = lone_group(tmp_path / "a", (4, 5, 6), 0.5, Scored(1.0))
    right = lone_group(tmp_path / "b", (4, 9, 6), 0.5, Scored(1.0))
    next((right / "payloads").iterdir()).write_bytes(b"")
    found = compare(left, right).first
    assert found is not None
    assert "can't be compared" in found.details[0]
