"""`parity audit` and `parity diff` print what the ledger proves, and end with its verdict."""

import json
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from unit.ledger.simulation import Setup, Simulation

from parity.cli.audit import audit, diff
from parity.cli.main import main
from parity.ledger.audit import counted
from parity.ledger.schema import DATABASE


@pytest.fixture
def recorded(make_run):
    def make(name: str, **setup: int) -> Path:
        folder = make_run(name)
        Simulation(folder, Setup(steps=3, **setup)).run()
        return folder

    return make


def shown() -> list[str]:
    """Every command line of the page and of the two helps, without the remark behind it."""
    page = Path(__file__).parents[3] / "docs" / "reliability.md"
    texts = [page.read_text(encoding="utf-8"), audit.EPILOG, diff.EPILOG]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    found = {re.split(r"\s{2,}", line)[0] for line in lines if line.startswith("parity ")}
    return sorted(line for line in found if not line.startswith("parity replay"))  # test_replay.py


def test_the_commands_of_the_page_and_the_helps_run_as_they_are_written(recorded):
    for name in ("RUN", "OTHER", "quickstart-2026", "run-a", "run-b"):
        recorded(name)
    assert len(shown()) >= 6
    for line in shown():
        assert main(shlex.split(line)[1:]) == 0, line


def test_audit_prints_every_proof_and_ends_with_0(recorded, capsys):
    recorded("one")
    assert main(["audit", "latest"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("one\n")
    assert "FAIL" not in text
    for word in ("conservation", "once", "age", "none skipped", "payloads", "losses:"):
        assert word in text
    assert "= trained 9 + dropped" in text
    assert "at step 3, newest checkpoint step 2, 0 resumes, 0 superseded events" in text


def test_audit_ends_with_1_and_names_a_planted_fault(recorded, capsys):
    folder = recorded("one")
    with closing(sqlite3.connect(folder / "ledger" / DATABASE)) as connection, connection:
        connection.execute("DELETE FROM trained WHERE group_index = 2")
    assert main(["audit", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(n for n, line in enumerate(lines) if line.split()[:2] == ["FAIL", "steps"])
    assert "step 1 follows step 0 and has 2 groups of 3" in lines[place + 1]


def test_audit_as_json_holds_the_same(recorded, capsys):
    recorded("one")
    assert main(["audit", "one", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is True
    assert all(proof["holds"] for proof in found["proofs"])
    counts = found["counts"]
    parts = ("trained", "dropped", "failed", "in_flight")
    assert counts["issued"] == sum(counts[name] for name in parts)


def test_a_run_without_a_ledger_is_told_so(make_run, capsys):
    make_run("bare")
    assert main(["audit", "bare"]) == 1
    assert "there is no ledger" in capsys.readouterr().err


def test_diff_of_equal_runs_ends_with_0(recorded, capsys):
    recorded("one")
    recorded("two")
    assert main(["diff", "one", "two"]) == 0
    assert capsys.readouterr().out.startswith("equal: ")


def test_diff_shows_both_sides_of_the_first_difference(recorded, capsys):
    recorded("one")
    recorded("two", seed=1)
    assert main(["diff", "one", "two"]) == 1
    text = capsys.readouterr().out
    assert "the first is episode 0/0 generated" in text
    assert "\n  A token " in text
    assert "\n  B token " in text
    assert main(["diff", "one", "two", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] is False
    assert found["first"]["key"] == {"group_index": 0, "sibling": 0}


def test_diff_says_which_run_lacks_an_event(recorded, capsys):
    recorded("one")
    folder = recorded("two")
    with closing(sqlite3.connect(folder / "ledger" / DATABASE)) as connection, connection:
        connection.execute("DELETE FROM admitted WHERE seq = (SELECT MIN(seq) FROM admitted)")
    assert main(["diff", "one", "two"]) == 1
    text = capsys.readouterr().out
    assert "1 of " in text
    assert "one has it" in text
    assert "two doesn't" in text


def test_one_is_told_in_the_singular():
    assert [counted(n, "version") for n in (0, 1, 2)] == ["0 versions", "1 version", "2 versions"]


def test_the_audit_of_a_short_run_counts_as_people_do(make_run, capsys):
    Simulation(make_run("short"), Setup(steps=1, every_steps=1)).run()
    assert main(["audit", "short"]) == 0
    text = capsys.readouterr().out
    assert "1 checkpoint stands where the ledger says" in text
    assert not re.search(r"\b1 (resume|checkpoint|version|payload|superseded event)s", text)
