"""The one history store, in the SQL that SQLite and PostgreSQL share.

`stores.py` opens it with a connection of either. Values are never deleted: marking changes trust
alone and is kept with its reason. Non-finite values are refused.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Protocol

from parity.ci.gates.history import (
    Flakes,
    HistoryError,
    Measured,
    Point,
    Run,
    Selection,
    Series,
    TestOutcome,
)

TABLES = (
    """CREATE TABLE IF NOT EXISTS ci_runs (
        run_key TEXT PRIMARY KEY, run_id TEXT NOT NULL, suite TEXT NOT NULL,
        shard INTEGER NOT NULL, backend TEXT NOT NULL, commit_id TEXT NOT NULL,
        branch TEXT NOT NULL, cadence TEXT NOT NULL, started_at TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS ci_values (
        run_key TEXT NOT NULL REFERENCES ci_runs, test TEXT NOT NULL, backend TEXT NOT NULL,
        suite TEXT NOT NULL, metric TEXT NOT NULL, place TEXT NOT NULL,
        value DOUBLE PRECISION NOT NULL, verdict TEXT NOT NULL, is_trusted INTEGER NOT NULL,
        PRIMARY KEY (test, backend, suite, metric, place, run_key))""",
    """CREATE TABLE IF NOT EXISTS ci_outcomes (
        run_key TEXT NOT NULL REFERENCES ci_runs, test TEXT NOT NULL, suite TEXT NOT NULL,
        outcome TEXT NOT NULL, num_attempts INTEGER NOT NULL, time_s DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (run_key, test))""",
    """CREATE TABLE IF NOT EXISTS ci_marks (
        marked_at TEXT NOT NULL, what TEXT NOT NULL, is_trusted INTEGER NOT NULL,
        reason TEXT NOT NULL, num_values INTEGER NOT NULL)""",
)
_OF_SERIES = "v.test = ? AND v.backend = ? AND v.suite = ? AND v.metric = ?"
_NEWEST = "ORDER BY r.started_at DESC, r.run_key DESC"

Row = Sequence[object]


class Cursor(Protocol):
    """What both drivers' cursors can do."""

    @property
    def rowcount(self) -> int:
        """Rows that the last statement changed."""
        ...

    def execute(self, query: str, params: Sequence[object] = ..., /) -> object:
        """Run one statement."""
        ...

    def fetchall(self) -> list[Row]:
        """What it found."""
        ...


class Driver(Protocol):
    """One database: how to connect, and how its SQL marks a parameter."""

    mark: str  # "?" or "%s"
    name: str  # for messages; without a password

    def connect(self) -> AbstractContextManager[Cursor]:
        """A cursor in a transaction: committed at the end, rolled back on an error.

        Raises HistoryError.
        """
        ...

    def has_tables(self, cursor: Cursor) -> bool:
        """Whether the tables exist."""
        ...


class SqlHistory:
    """Implements `History`; a connection lives for one call."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def create(self) -> None:
        """Make the tables where they are missing."""
        with self._driver.connect() as cursor:
            for statement in TABLES:
                cursor.execute(statement)

    def check(self) -> None:
        """Raise HistoryError unless the store can be reached and has its tables."""
        with self._driver.connect() as cursor:
            if not self._driver.has_tables(cursor):
                raise HistoryError(
                    f"{self._driver.name} has no tables of Parity's CI; make them once with"
                    " `parity ci gate --init --history URL`, as a user who may create tables."
                )

    def trusted(self, series: Series, *, limit: int) -> list[Point]:
        """The newest `limit` trusted values, oldest first."""
        return self._points(series, "AND v.is_trusted = 1", limit)

    def trusted_places(self, series: Series, *, limit: int) -> dict[str, list[Point]]:
        """As `trusted`, for every place (`at`) of the metric at once."""
        query = (
            "SELECT value, run_id, commit_id, is_trusted, place FROM (SELECT v.value, r.run_id,"
            " r.commit_id, v.is_trusted, v.place,"
            f" ROW_NUMBER() OVER (PARTITION BY v.place {_NEWEST}) AS age"
            " FROM ci_values v JOIN ci_runs r ON r.run_key = v.run_key"
            f" WHERE {_OF_SERIES} AND v.is_trusted = 1) AS newest WHERE age <= ?"
            " ORDER BY place, age DESC"
        )
        rows = self._rows(query, (series.test, series.backend, series.suite, series.metric, limit))
        found: dict[str, list[Point]] = {}
        for row in rows:
            found.setdefault(str(row[4]), []).append(self._point(row, series))
        return found

    def recent(self, series: Series, *, limit: int) -> list[Point]:
        """The newest `limit` values, trusted or not, oldest first."""
        return self._points(series, "", limit)

    def places(self, test: str, backend: str, suite: str, metric: str) -> list[str]:
        """The places that the newest trusted run of the metric has."""
        newest = (
            f"SELECT v.run_key FROM ci_values v JOIN ci_runs r ON r.run_key = v.run_key"
            f" WHERE {_OF_SERIES} AND v.is_trusted = 1 {_NEWEST} LIMIT 1"
        )
        key = (test, backend, suite, metric)
        query = f"SELECT v.place FROM ci_values v WHERE {_OF_SERIES} AND v.run_key = ({newest})"
        return sorted(str(row[0]) for row in self._rows(query, (*key, *key)))

    def series(self, test: str | None = None) -> list[Series]:
        """Every series of a test, or of all tests, sorted."""
        where, values = ("WHERE test = ?", (test,)) if test is not None else ("", ())
        query = f"SELECT DISTINCT test, backend, suite, metric, place FROM ci_values {where}"
        found = [tuple(map(str, row)) for row in self._rows(query, values)]
        return [Series(*row) for row in sorted(found)]

    def write(self, run: Run, values: Sequence[Measured], outcomes: Sequence[TestOutcome]) -> None:
        """Store a run, whole or not at all; a run that is there already is refused."""
        for measured in values:
            if not math.isfinite(measured.value):
                raise HistoryError(f"{measured.series} is {measured.value}; only finite is stored.")
        with self._driver.connect() as cursor:
            self._write_run(cursor, run)
            for v in values:
                s = v.series
                self._run(
                    cursor,
                    "INSERT INTO ci_values VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (run.key, s.test, s.backend, s.suite, s.metric, s.at, v.value, v.verdict,
                     int(v.is_trusted)),
                )  # fmt: skip
            for o in outcomes:
                self._run(
                    cursor,
                    "INSERT INTO ci_outcomes VALUES (?, ?, ?, ?, ?, ?)",
                    (run.key, o.test, run.suite, o.outcome, o.num_attempts, o.time_s),
                )

    def mark(self, selection: Selection, *, is_trusted: bool, reason: str) -> int:
        """Overrule the trust of all selected values; how many there are."""
        what, where, value = _where(selection)
        with self._driver.connect() as cursor:
            self._run(
                cursor,
                f"UPDATE ci_values SET is_trusted = ? WHERE {where}",
                (int(is_trusted), value),
            )
            count = cursor.rowcount
            if not count:
                raise HistoryError(f"no stored value belongs to {what}; nothing was marked.")
            row = (_utc(datetime.now(UTC)), what, int(is_trusted), reason, count)
            self._run(cursor, "INSERT INTO ci_marks VALUES (?, ?, ?, ?, ?)", row)
        return count

    def flakes(self) -> list[Flakes]:
        """The tests that have ever passed, those with the most flakes first."""
        rows = self._rows(
            "SELECT test, suite, COUNT(*), SUM(CASE WHEN num_attempts > 1 THEN 1 ELSE 0 END)"
            " FROM ci_outcomes WHERE outcome = ? GROUP BY test, suite",
            ("pass",),
        )
        found = [Flakes(str(r[0]), str(r[1]), int(str(r[2])), int(str(r[3]))) for r in rows]
        return sorted(found, key=lambda f: (-f.num_flaky / f.num_passes, f.test, f.suite))

    def _write_run(self, cursor: Cursor, run: Run) -> None:
        row = (
            run.key, run.run_id, run.suite, run.shard, run.backend, run.commit, run.branch,
            run.cadence, _utc(run.started_at),
        )  # fmt: skip
        marks = ", ".join("?" * len(row))
        self._run(cursor, f"INSERT INTO ci_runs VALUES ({marks}) ON CONFLICT DO NOTHING", row)
        if cursor.rowcount != 1:
            raise HistoryError(
                f"the run {run.key} is in {self._driver.name} already; a run is stored once."
                " Give a rerun an id of its own with --run-id."
            )

    def _points(self, series: Series, condition: str, limit: int) -> list[Point]:
        query = (
            "SELECT v.value, r.run_id, r.commit_id, v.is_trusted FROM ci_values v"
            " JOIN ci_runs r ON r.run_key = v.run_key"
            f" WHERE {_OF_SERIES} AND v.place = ? {condition} {_NEWEST} LIMIT ?"
        )
        key = (series.test, series.backend, series.suite, series.metric, series.at, limit)
        rows = self._rows(query, key)
        return [self._point(row, series) for row in rows][::-1]

    def _point(self, row: Row, series: Series) -> Point:
        return Point(self._number(row[0], series), str(row[1]), str(row[2]), bool(row[3]))

    def _number(self, value: object, series: Series) -> float:
        """A stored value; only a hand or a broken disk can have put anything else there."""
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise HistoryError(
                f"{self._driver.name} holds {str(value)[:80]!r} as a value of {series.metric!r} of"
                f" {series.test}; only finite numbers belong there. Delete that row."
            )
        return number

    def _rows(self, query: str, values: Sequence[object]) -> list[Row]:
        with self._driver.connect() as cursor:
            self._run(cursor, query, values)
            return cursor.fetchall()

    def _run(self, cursor: Cursor, query: str, values: Sequence[object]) -> None:
        cursor.execute(query.replace("?", self._driver.mark), values)


def _utc(moment: datetime) -> str:
    """Fixed width, so that text sorts as time does."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _where(selection: Selection) -> tuple[str, str, str]:
    """In words, as a condition, and the condition's value."""
    runs = "run_key IN (SELECT run_key FROM ci_runs WHERE {} = ?)"
    if selection.run_id is not None:
        return f"run {selection.run_id}", runs.format("run_id"), selection.run_id
    if selection.commit is not None:
        return f"commit {selection.commit}", runs.format("commit_id"), selection.commit
    assert selection.test is not None, "a selection has exactly one criterion"
    return f"test {selection.test}", "test = ?", selection.test


@contextmanager
def told(name: str, errors: tuple[type[Exception], ...]) -> Generator[None]:
    """Turn a driver's errors into HistoryError, one sentence, without a password."""
    try:
        yield
    except errors as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HistoryError(
            f"the history store {name} failed ({first}); check that it is up and reachable, and"
            " that the user may read (nightly and weekly runs: and write) its tables."
        ) from error
