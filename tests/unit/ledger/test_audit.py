"""Every planted fault is found by the proof that is there for it, and clean ledgers hold."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from unit.ledger.simulation import CONFIG, Setup, Simulation, task_at

from parity.ledger.audit import audit
from parity.ledger.recovery import resume_ledger
from parity.ledger.schema import DATABASE, EVENTS, LedgerError

SETUP = Setup(seed=3, steps=8, max_lag=2, every_steps=3, keep=3)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes, whose first one was stopped after step 5 of 8."""
    dir = tmp_path_factory.mktemp("clean")
    first = Simulation(dir, SETUP)
    for _ in range(5):
        first.step()
    first.ledger.close()
    Simulation(dir, SETUP, life=1).run()
    assert audit(dir / "ledger").holds
    return dir / "ledger"


@pytest.fixture
def copy(clean: Path, tmp_path: Path) -> Path:
    shutil.copytree(clean, tmp_path / "ledger")
    return tmp_path / "ledger"


def change(dir: Path, *statements: str) -> None:
    with closing(sqlite3.connect(dir / DATABASE, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
            assert connection.total_changes, f"planted nothing: {statement}"


def segments_of(dir: Path) -> list[Path]:
    """Those that the surviving lineage points at, newest first."""
    with closing(sqlite3.connect(dir / DATABASE)) as connection:
        found = connection.execute(
            "SELECT DISTINCT segment FROM surviving_generated JOIN segments USING (segment)"
            " WHERE retired_at IS NULL ORDER BY segment DESC"
        ).fetchall()
    return [dir / "payloads" / f"{number:08d}.seg" for (number,) in found]


def broken(dir: Path) -> set[str]:
    found = audit(dir)
    assert found.holds == (not any(p.num_faults for p in found.proofs))
    return {proof.name for proof in found.proofs if not proof.holds}


def test_a_clean_ledger_says_what_it_proves(clean: Path):
    found = audit(clean)
    said = {proof.name: proof.says for proof in found.proofs}
    assert found.counts is not None
    assert found.counts.issued == found.counts.trained + sum(
        (found.counts.dropped, found.counts.failed, found.counts.in_flight)
    )
    assert said["conservation"].startswith(f"issued {found.counts.issued} = trained 24 + dropped")
    assert said["once"] == "none of 24 trained groups is trained twice"
    assert said["age"].endswith("versions old, the bound is 2")
    assert (found.steps, found.committed_step, found.resumes) == (8, 6, 1)
    assert found.superseded_events is not None
    assert found.superseded_events > 0
    assert {loss.what for loss in found.losses} >= {"unscored"}


@pytest.mark.parametrize("table", sorted(EVENTS))
@pytest.mark.parametrize("which", ["MIN(seq)", "MAX(seq)"])
def test_a_deleted_row_of_any_kind_is_found(copy: Path, table: str, which: str):
    change(copy, f"DELETE FROM {table} WHERE seq = (SELECT {which} FROM {table})")
    assert "numbering" in broken(copy)


LAST_TRAINED = "(SELECT MAX(seq) FROM surviving_trained)"
ADD = "(SELECT last_seq FROM written) + 1"
COUNT_IT = "UPDATE written SET last_seq = last_seq + 1"


@pytest.mark.parametrize(
    ("statements", "proofs"),
    [
        (
            [
                f"INSERT INTO trained SELECT {ADD}, at, group_index, attempt, step FROM trained"
                f" WHERE seq = {LAST_TRAINED}",
                COUNT_IT,
            ],
            {"once", "conservation"},
        ),
        (
            [
                f"INSERT INTO ended SELECT {ADD}, at, group_index, attempt, 'dropped', 'x', ''"
                f" FROM trained WHERE seq = {LAST_TRAINED}",
                COUNT_IT,
            ],
            {"conservation"},
        ),
        (
            [f"UPDATE trained SET group_index = 10000 WHERE seq = {LAST_TRAINED}"],
            {"conservation", "order"},
        ),
        (
            [f"UPDATE trained SET step = 99 WHERE seq = {LAST_TRAINED}"],
            {"steps"},
        ),
        (
            [
                "UPDATE generated SET episodes = (SELECT json_group_array(json_replace(value, "
                "'$[2]', value ->> 2 - 3)) FROM json_each(episodes)) WHERE group_index ="
                f" (SELECT group_index FROM trained WHERE seq = {LAST_TRAINED})"
            ],
            {"age", "payloads"},
        ),
        (
            [
                "UPDATE generated SET episodes = (SELECT json_group_array(json_replace(value, "
                "'$[3]', 99)) FROM json_each(episodes)) WHERE group_index ="
                f" (SELECT group_index FROM trained WHERE seq = {LAST_TRAINED})"
            ],
            {"age", "payloads"},
        ),
        (["UPDATE issued SET task_position = 0 WHERE group_index = 5"], {"once", "none skipped"}),
        (["UPDATE committed SET next_group = next_group + 1"], {"checkpoints"}),
        (["UPDATE steps SET num_groups = 2 WHERE step = 7"], {"steps", "payloads"}),
        (["DELETE FROM branches WHERE branch = 2"], {"once", "steps"}),
        (["DELETE FROM branches WHERE branch = 1"], {"lineage"}),
        (["UPDATE branches SET fork_seq = fork_seq + 40 WHERE branch = 2"], {"conservation"}),
        (["UPDATE written SET last_seq = last_seq - 1"], {"numbering"}),
        (["DELETE FROM written", "INSERT INTO written VALUES (1, 1)"], {"numbering"}),
        (["UPDATE generated SET attempt = 7 WHERE group_index = 0"], {"order"}),
        (["UPDATE generated SET episodes = '[[0,1,0,0,\"stop\"]]'"], {"order", "payloads"}),
        (["UPDATE generated SET episodes = json_insert(episodes, '$[0][#]', 1)"], {"payloads"}),
        (["UPDATE scored SET results = '[1.0]'"], {"order"}),
        (["UPDATE scored SET results = '[1.0,\"good\"]'"], {"order"}),
        (['UPDATE scored SET results = \'[1.0,{"outcome":"good"}]\''], {"order"}),
        (["UPDATE generated SET episodes = '[[0,'"], {"database"}),
    ],
)
def test_a_planted_fault_is_found_by_its_proof(copy: Path, statements: list[str], proofs: set):
    change(copy, *statements)
    assert broken(copy) >= proofs


def test_views_that_were_tampered_with_are_found(copy: Path):
    with closing(sqlite3.connect(copy / DATABASE)) as connection:
        connection.execute("DROP VIEW surviving_trained")
        connection.execute("CREATE VIEW surviving_trained AS SELECT * FROM trained WHERE 0")
    assert broken(copy) == {"database"}


def test_a_flipped_byte_of_a_payload_is_found_and_named(copy: Path):
    path = segments_of(copy)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert broken(copy) == {"payloads"}
    (fault,) = next(p for p in audit(copy).proofs if p.name == "payloads").faults
    assert path.name in fault


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-5]),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
    ids=["cut", "emptied", "removed"],
)
def test_a_truncated_payload_file_is_found(copy: Path, damage: Callable[[Path], object]):
    damage(segments_of(copy)[0])
    assert broken(copy) == {"payloads"}


def test_a_damaged_database_is_a_fault_and_a_missing_one_an_error(copy: Path):
    path = copy / DATABASE
    data = bytearray(path.read_bytes())
    data[100:20_000] = bytes(19_900)
    path.write_bytes(data)
    found = audit(copy)
    assert not found.holds
    assert found.counts is None
    path.unlink()
    with pytest.raises(LedgerError, match="there is no ledger"):
        audit(copy)


def test_an_unfinished_record_of_a_killed_process_is_a_note(copy: Path):
    oldest = segments_of(copy)[-1]
    with oldest.open("ab") as file:
        file.write(b"PRL1\xff\0\0\0half")
    found = audit(copy)
    assert found.holds
    assert found.notes == (f"{oldest.name} ends with 12 bytes of a record that was never finished",)


def test_auditing_changes_nothing_not_even_in_a_killed_runs_folder(copy: Path, tmp_path: Path):
    resumed, _ = resume_ledger(copy, None, max_lag=2, config=CONFIG)
    resumed.issued(0, task=task_at(0), position=0, epoch=0, size=2)
    resumed.flush()
    killed = tmp_path / "killed"  # the files of a process that never closed its database
    shutil.copytree(copy, killed)
    resumed.close()
    (killed / f"{DATABASE}-shm").unlink()
    assert (killed / f"{DATABASE}-wal").stat().st_size > 0
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    assert audit(killed).resumes == 2
    assert {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()} == before


def test_a_run_that_goes_on_can_be_audited_at_every_step(tmp_path: Path):
    simulation = Simulation(tmp_path, SETUP)
    with simulation.ledger:
        for step in range(1, 6):
            simulation.step()
            simulation.ledger.flush(is_durable=False)
            found = audit(tmp_path / "ledger")
            assert found.holds
            assert found.steps == step
            assert found.counts == simulation.ledger.counts
