"""Both stores keep, refuse and mark the same, and lead to the same verdicts."""

import math
import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from unit.ci.gates.cases import PLACE, gate, measured, run
from unit.ci.gates.conftest import fresh

from parity.ci.gates.history import HistoryError, Selection, Series, TestOutcome, why_not_write
from parity.ci.gates.judge import Judge, Verdict
from parity.ci.gates.record import Recorded
from parity.ci.gates.sql import SqlHistory
from parity.ci.gates.stores import open_history
from parity.errors import ParityError

SERIES = Series(PLACE.test, PLACE.backend, PLACE.suite, "grad_norm", "last")


def test_the_newest_trusted_values_come_oldest_first(history: SqlHistory) -> None:
    for number in (3, 1, 2, 5, 4):
        history.write(run(number), [measured(float(number), trusted=number != 4)], [])
    assert [p.value for p in history.trusted(SERIES, limit=3)] == [2.0, 3.0, 5.0]
    assert [p.value for p in history.recent(SERIES, limit=3)] == [3.0, 4.0, 5.0]
    assert history.recent(SERIES, limit=2)[0].is_trusted is False
    assert history.trusted(SERIES, limit=1)[0].run_id == "run-5"


def test_a_run_is_stored_once_and_whole(history: SqlHistory) -> None:
    history.write(run(1), [measured(1.0)], [TestOutcome(PLACE.test, "pass", 1, 2.0)])
    with pytest.raises(HistoryError, match="a run is stored once"):
        history.write(run(1), [measured(9.0, metric="other")], [])
    with pytest.raises(ParityError):  # the second value has the same key: nothing of it is kept
        history.write(run(2), [measured(5.0), measured(6.0)], [])
    assert [p.value for p in history.recent(SERIES, limit=9)] == [1.0]
    assert history.series() == [SERIES]
    history.write(run(2), [measured(5.0)], [])
    assert [p.value for p in history.recent(SERIES, limit=9)] == [1.0, 5.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_stored(history: SqlHistory, value: float) -> None:
    with pytest.raises(HistoryError, match="only finite"):
        history.write(run(1), [measured(value)], [])
    assert history.series() == []


@pytest.mark.parametrize(
    "selection", [Selection(run_id="run-2"), Selection(commit=f"{2:040d}")], ids=["run", "commit"]
)
def test_a_run_can_be_marked_untrusted_and_trusted_again(
    history: SqlHistory, selection: Selection
) -> None:
    for number in (1, 2, 3):
        history.write(run(number), [measured(float(number))], [])
    assert history.mark(selection, is_trusted=False, reason="bad node") == 1
    assert [p.value for p in history.trusted(SERIES, limit=9)] == [1.0, 3.0]
    assert history.mark(selection, is_trusted=True, reason="node was fine") == 1
    assert [p.value for p in history.trusted(SERIES, limit=9)] == [1.0, 2.0, 3.0]


def test_all_values_of_a_test_can_be_marked_so_that_its_series_begin_anew(
    history: SqlHistory,
) -> None:
    history.write(run(1), [measured(1.0), measured(2.0, metric="loss")], [])
    assert history.mark(Selection(test=PLACE.test), is_trusted=False, reason="new data") == 2
    assert history.trusted(SERIES, limit=9) == []
    with pytest.raises(HistoryError, match="no stored value belongs to run nope"):
        history.mark(Selection(run_id="nope"), is_trusted=False, reason="typo")


def test_the_places_are_those_of_the_newest_trusted_run(history: SqlHistory) -> None:
    history.write(run(1), [measured(1.0, at=f"step {n}") for n in range(3)], [])
    history.write(run(2), [measured(1.0, at="step 0"), measured(1.0, at="step 1")], [])
    history.write(run(3), [measured(1.0, at="step 7", trusted=False)], [])
    places = history.places(PLACE.test, PLACE.backend, PLACE.suite, "grad_norm")
    assert places == ["step 0", "step 1"]


def test_flakes_are_counted_over_passes(history: SqlHistory) -> None:
    for number, (outcome, attempts) in enumerate([("pass", 1), ("pass", 2), ("fail", 2)]):
        history.write(run(number), [], [TestOutcome("a.py", outcome, attempts, 1.0)])
    (flakes,) = history.flakes()
    assert (flakes.num_passes, flakes.num_flaky) == (2, 1)


def verdicts(history: SqlHistory) -> list[tuple[str, str, float | None]]:
    """A seeded month of nightly runs with every kind of accident."""
    noise = random.Random(7)
    gates = [
        gate("grad_norm", hard_max=2.0),
        gate("ppo_kl", steps="all"),
        gate("reward", steps="mean"),
    ]
    judge = Judge(history, limit=20, least=3)
    found: list[tuple[str, str, float | None]] = []
    for number in range(26):
        norm = 1.0 + noise.gauss(0, 0.02) + (0.05 * number)  # a slow drift
        kl = math.nan if number == 12 else 0.3 + noise.gauss(0, 0.01)
        kl = 3.0 if number == 16 else kl  # a jump
        record = [Recorded("grad_norm", 5, norm), Recorded("ppo_kl", 0, kl)]
        record += [Recorded("ppo_kl", 1, 0.3)] if number != 20 else []
        record += [Recorded("reward", n, noise.random() * 0.1 + 0.5) for n in range(3)]
        judged = judge.record(gates, record, PLACE)
        found += [(j.metric_key, j.verdict.value, j.reference) for j in judged]
        values = [
            measured(j.value, at=j.at, metric=j.metric_key, trusted=j.is_good)
            for j in judged
            if j.value is not None and math.isfinite(j.value)
        ]
        history.write(run(number), values, [])
    return found


def test_both_stores_give_the_same_verdicts(tmp_path: Path, postgres_url: str) -> None:
    one = verdicts(open_history(str(tmp_path / "history.db")))
    two = verdicts(fresh(postgres_url))
    assert one == two
    kinds = {verdict for _, verdict, _ in one}
    assert kinds == {
        v.value
        for v in (
            Verdict.PASS,
            Verdict.NEW,
            Verdict.OUT_OF_BAND,
            Verdict.OUT_OF_BOUND,
            Verdict.NON_FINITE,
            Verdict.MISSING,
        )
    }


WRITER = """
import sys
from unit.ci.gates.cases import measured, run
from parity.ci.gates.stores import open_history
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 10):
    open_history(sys.argv[1]).write(run(number), [measured(float(number))], [])
"""


def test_the_values_of_all_places_come_at_once_and_are_those_of_each(history: SqlHistory) -> None:
    for number in range(5):
        values = [measured(float(number), at=f"step {n}", trusted=number != n) for n in range(3)]
        history.write(run(number), values, [])
    places = ["step 0", "step 1", "step 2"]
    every = history.trusted_places(SERIES, limit=2)
    assert every == {at: history.trusted(replace(SERIES, at=at), limit=2) for at in places}


def test_thousands_of_steps_take_one_question(tmp_path: Path) -> None:
    history = open_history(str(tmp_path / "history.db"))
    steps = range(3000)
    history.write(run(0), [measured(1.0, at=f"step {n}") for n in steps], [])
    rows = [Recorded("grad_norm", step, 1.0) for step in steps]
    begun = time.process_time()
    found = Judge(history, limit=20, least=1).record([gate(steps="all")], rows, PLACE)
    assert time.process_time() - begun < 5.0
    assert [each.verdict for each in found] == [Verdict.PASS] * 3000


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WRITER, str(tmp_path / "history.db")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    writers = [
        subprocess.Popen([*words, str(first)], stderr=subprocess.PIPE, env=environment)
        for first in (0, 100, 200)
    ]
    for writer in writers:
        _, told = writer.communicate(timeout=120)
        assert writer.returncode == 0, told.decode()
    stored = open_history(str(tmp_path / "history.db")).recent(measured(0.0).series, limit=99)
    assert len(stored) == 30


@pytest.mark.parametrize("wrong", ["abc", "1e999", b"\x00"])
def test_a_stored_value_that_is_no_number_is_an_error_and_never_a_zero(
    wrong: object, tmp_path: Path
) -> None:
    path = tmp_path / "history.db"
    history = open_history(str(path))
    history.write(run(1), [measured(1.0)], [])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE ci_values SET value = ?", (wrong,))
    with pytest.raises(HistoryError, match="only finite numbers belong there"):
        history.trusted(measured(1.0).series, limit=9)


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    open_history(str(path)).write(run(1), [measured(1.0)], [])
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(HistoryError, match="failed"):
        open_history(str(path)).trusted(measured(1.0).series, limit=9)


def test_a_server_without_tables_is_refused_with_the_remedy(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        connection.execute("DROP TABLE IF EXISTS ci_marks, ci_outcomes, ci_values, ci_runs")
    with pytest.raises(HistoryError, match="parity ci gate --init"):
        open_history(postgres_url)


def test_an_unreachable_server_is_told_without_its_password() -> None:
    with pytest.raises(HistoryError) as caught:
        open_history("postgresql://ci:s3cret@127.0.0.1:1/ci")
    assert "s3cret" not in str(caught.value)
    assert "postgresql://127.0.0.1/ci" in str(caught.value)


def test_an_unknown_scheme_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="known are sqlite"):
        open_history("mysql://host/db")
    (tmp_path / "broken.db").write_bytes(b"not a database" * 100)
    with pytest.raises(HistoryError, match="failed"):
        open_history(str(tmp_path / "broken.db"))


@pytest.mark.parametrize(
    ("writes", "branch", "said"),
    [
        (True, "main", None),
        (False, "main", "don't allow it in ci.toml"),
        (True, "topic", "only main writes"),
        (True, None, "branch isn't known"),
    ],
)
def test_only_the_main_branch_and_some_cadences_write(
    writes: bool,  # noqa: FBT001
    branch: str | None,
    said: str | None,
) -> None:
    why = why_not_write(
        writes_history=writes, cadence="nightly", branch=branch, default_branch="main"
    )
    assert (why is None) if said is None else (why is not None and said in why)


def test_a_selection_names_exactly_one_thing() -> None:
    with pytest.raises(HistoryError, match="exactly one"):
        Selection()
    with pytest.raises(HistoryError, match="exactly one"):
        Selection(run_id="1", commit="2")
