"""The tables and views of `ledger.sqlite`, and how it is opened to write and to read.

Every event is one row of the table of its kind, numbered by `seq` without a gap over all
tables, and is never changed. The siblings of a group are generated and scored in one event each:
a JSON list with one entry per sibling (`stored.py`), which the view `episodes` lays out as rows.
A resume adds one row to `branches`: it says after which event
the run went on, and so makes all later events of earlier processes superseded, in one
transaction. The `surviving_*` views hold what isn't superseded; `parity audit` and resume
read only those. `conservation` is the law: issued = trained + dropped + failed + in flight.

Readers never write: neither to a run that goes on nor to a copied or read-only folder.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from parity.errors import ParityError

DATABASE = "ledger.sqlite"
FORMAT = 2  # PRAGMA user_version of the database
FOLDER = "ledger"  # in the run folder
LOCKED_S = 30.0  # SQLite's own wait for a reader that holds the file


class LedgerError(ParityError):
    """The ledger can't be written or read, or was told what can't be true of a task."""


def _columns(text: str) -> tuple[str, ...]:
    return tuple(" ".join(column.split()) for column in text.strip().split(";"))


# Event tables: name -> columns after `seq`. The writer's rows have this order.
EVENTS: dict[str, tuple[str, ...]] = {
    "issued": _columns("""
        at REAL NOT NULL; group_index INTEGER NOT NULL; task TEXT NOT NULL;
        task_position INTEGER NOT NULL; epoch INTEGER NOT NULL; attempt INTEGER NOT NULL;
        size INTEGER NOT NULL"""),
    "generated": _columns("""
        at REAL NOT NULL; group_index INTEGER NOT NULL; attempt INTEGER NOT NULL;
        prompt_tokens INTEGER NOT NULL; episodes TEXT NOT NULL;
        segment INTEGER; position INTEGER; size_bytes INTEGER; digest BLOB NOT NULL"""),
    "scored": _columns("""
        at REAL NOT NULL; group_index INTEGER NOT NULL; attempt INTEGER NOT NULL;
        results TEXT NOT NULL"""),
    "admitted": _columns("""
        at REAL NOT NULL; group_index INTEGER NOT NULL; attempt INTEGER NOT NULL"""),
    "ended": _columns("""
        at REAL NOT NULL; group_index INTEGER NOT NULL; attempt INTEGER NOT NULL;
        outcome TEXT NOT NULL CHECK (outcome IN ('dropped', 'failed'));
        reason TEXT NOT NULL; detail TEXT NOT NULL"""),
    "steps": _columns("""
        at REAL NOT NULL; step INTEGER NOT NULL; version INTEGER NOT NULL;
        num_groups INTEGER NOT NULL;
        segment INTEGER; position INTEGER; size_bytes INTEGER; digest BLOB NOT NULL"""),
    "trained": _columns("""
        at REAL NOT NULL; group_index INTEGER NOT NULL; attempt INTEGER NOT NULL;
        step INTEGER NOT NULL"""),
    "committed": _columns("""
        at REAL NOT NULL; step INTEGER NOT NULL; version INTEGER NOT NULL;
        ledger_seq INTEGER NOT NULL; task_position INTEGER NOT NULL;
        next_group INTEGER NOT NULL"""),
}
OTHER_TABLES = {
    "branches": (
        "branch INTEGER PRIMARY KEY, at REAL NOT NULL, fork_seq INTEGER NOT NULL,"
        " first_seq INTEGER NOT NULL, step INTEGER NOT NULL, version INTEGER NOT NULL,"
        " task_position INTEGER NOT NULL, next_group INTEGER NOT NULL, max_age INTEGER NOT NULL"
    ),
    "written": "id INTEGER PRIMARY KEY CHECK (id = 1), last_seq INTEGER NOT NULL",
    "segments": (
        "segment INTEGER PRIMARY KEY, first_seq INTEGER NOT NULL, last_seq INTEGER,"
        " size_bytes INTEGER, retired_at REAL"
    ),
}
INDEXES = {
    "issued_group": "issued (group_index)",
    "generated_group": "generated (group_index)",
    "scored_group": "scored (group_index)",
    "admitted_group": "admitted (group_index)",
    "ended_group": "ended (group_index)",
    "trained_group": "trained (group_index)",
    "trained_step": "trained (step)",
}
# Of one entry `r` of `scored.results`; null where it is none.
OUTCOME = (
    "CASE r.type WHEN 'object' THEN json_extract(r.value, '$.outcome')"
    " WHEN 'real' THEN 'scored' WHEN 'integer' THEN 'scored' END"
)
VIEWS = {
    "lineage": """
        SELECT branch, max_age, first_seq, MIN(
            COALESCE((SELECT MIN(n.first_seq) - 1 FROM branches n WHERE n.branch > b.branch),
                     (SELECT last_seq FROM written)),
            COALESCE((SELECT MIN(n.fork_seq) FROM branches n WHERE n.branch > b.branch),
                     (SELECT last_seq FROM written))
        ) AS last_seq FROM branches b""",
    **{
        f"surviving_{table}": (
            f"SELECT e.* FROM lineage l CROSS JOIN {table} e"
            " WHERE e.seq BETWEEN l.first_seq AND l.last_seq"
        )
        for table in EVENTS
        if table != "committed"
    },
    # A checkpoint survives with the event it stands after; its own row comes a little later.
    "surviving_committed": """
        SELECT c.* FROM committed c WHERE NOT EXISTS (
            SELECT 1 FROM branches b WHERE b.first_seq > c.seq AND b.fork_seq < c.ledger_seq)""",
    # The newest attempt of every group that was issued.
    "groups": """
        SELECT i.group_index, i.task, i.task_position, i.epoch, i.size, MAX(i.attempt) AS attempt,
            MIN(i.seq) AS issued_seq, MIN(i.at) AS issued_at
        FROM surviving_issued i GROUP BY i.group_index""",
    "group_ends": """
        SELECT group_index, attempt, 'trained' AS state, '' AS reason, seq FROM surviving_trained
        UNION ALL SELECT group_index, attempt, outcome, reason, seq FROM surviving_ended""",
    "in_flight": """
        SELECT g.* FROM groups g
        WHERE NOT EXISTS (SELECT 1 FROM group_ends e WHERE e.group_index = g.group_index)""",
    "conservation": """
        SELECT (SELECT COUNT(*) FROM groups) AS issued,
            (SELECT COUNT(*) FROM group_ends WHERE state = 'trained') AS trained,
            (SELECT COUNT(*) FROM group_ends WHERE state = 'dropped') AS dropped,
            (SELECT COUNT(*) FROM group_ends WHERE state = 'failed') AS failed,
            (SELECT COUNT(*) FROM in_flight) AS in_flight""",
    "losses": """
        SELECT state, reason, COUNT(*) AS num_groups FROM group_ends
        WHERE state <> 'trained' GROUP BY state, reason ORDER BY num_groups DESC, reason""",
    # Per sibling: its tokens and what came of grading. Exact values of rewards are read from
    # `results`, as SQLite rounds decimals in its own way.
    "episodes": f"""
        SELECT g.seq, g.group_index, g.attempt, CAST(e.key AS INTEGER) AS sibling, g.prompt_tokens,
            json_extract(e.value, '$[0]') AS sampling_attempt,
            json_extract(e.value, '$[1]') AS sampled_tokens,
            json_extract(e.value, '$[2]') AS min_version,
            json_extract(e.value, '$[3]') AS max_version,
            json_extract(e.value, '$[4]') AS finish_reason,
            {OUTCOME} AS outcome
        FROM surviving_generated g JOIN surviving_scored s USING (group_index, attempt)
        JOIN json_each(g.episodes) e JOIN json_each(s.results) r ON r.key = e.key""",
    # Per trained group: the oldest and newest version among the tokens of its scored episodes.
    "ages": """
        SELECT t.group_index, t.step, s.version, l.max_age,
            MIN(e.min_version) AS oldest, MAX(e.max_version) AS newest
        FROM surviving_trained t
        JOIN lineage l ON t.seq BETWEEN l.first_seq AND l.last_seq
        JOIN surviving_steps s ON s.step = t.step
        JOIN episodes e ON e.group_index = t.group_index AND e.attempt = t.attempt
            AND e.outcome = 'scored'
        GROUP BY t.seq""",
}


def ledger_dir(run_dir: Path) -> Path:
    """The folder of a run's ledger."""
    return run_dir / FOLDER


def statements() -> dict[str, str]:
    """Name of each table, index and view -> the statement that makes it."""
    events = {n: f"seq INTEGER PRIMARY KEY, {', '.join(c)}" for n, c in EVENTS.items()}
    tables = {n: f"CREATE TABLE {n} ({c})" for n, c in (events | OTHER_TABLES).items()}
    indexes = {n: f"CREATE INDEX {n} ON {on}" for n, on in INDEXES.items()}
    views = {n: f"CREATE VIEW {n} AS {' '.join(body.split())}" for n, body in VIEWS.items()}
    return tables | indexes | views


def insertion(table: str) -> str:
    """The statement that adds one row to an event table."""
    return f"INSERT INTO {table} VALUES (?{', ?' * len(EVENTS[table])})"


def is_made(path: Path) -> bool:
    """Whether a ledger is there; not where a process was killed while it made one.

    Raises LedgerError where the file is no database, or of another version of Parity.
    """
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S)) as connection:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found not in (0, FORMAT):
                raise _of_another_version(path, found)
            return found != 0
    except sqlite3.Error as error:
        raise damaged(path, error) from error


def define(connection: sqlite3.Connection) -> None:
    """Tables, indexes and views, inside the transaction that makes a ledger."""
    for statement in statements().values():
        connection.execute(statement)
    connection.execute("INSERT INTO written VALUES (1, 0)")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def connect(path: Path) -> sqlite3.Connection:
    """The connection of the one writer."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {64 * 2**20}")
    return connection


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection]:
    """One unchanging view of a ledger, in a run that goes on or in a copied folder.

    Raises LedgerError where it is missing, damaged, or of another version of Parity.
    """
    if not path.is_file():
        raise LedgerError(
            f"there is no ledger at {path}; only runs that `parity train` made have one."
        )
    with _source(path) as uri:
        try:
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=LOCKED_S)
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {path} can't be opened ({error}).") from error
        with closing(connection):
            try:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                (found,) = connection.execute("PRAGMA user_version").fetchone()
                if found == 0:
                    raise LedgerError(
                        f"the ledger {path} is empty: the process was killed while it made it, and"
                        " nothing had happened yet; start the run anew."
                    )
                if found != FORMAT:
                    raise _of_another_version(path, found)
                yield connection
            except sqlite3.Error as error:
                raise damaged(path, error) from error


def _of_another_version(path: Path, found: int) -> LedgerError:
    return LedgerError(
        f"the ledger {path} has format {found}, this Parity reads {FORMAT}; use the version that"
        " wrote it."
    )


def damaged(path: Path, error: sqlite3.Error) -> LedgerError:
    """What to do where SQLite can't go on with a ledger: it is damaged, or the disk refuses."""
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # absent on errors of the module's own
    if primary in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return LedgerError(
            f"the ledger {path} can't be used, because the disk refuses ({error}). Free disk space"
            " and do the same again; the ledger is as it was."
        )
    return LedgerError(
        f"the ledger {path} can't be read ({error}); it is damaged. Restore it from a copy, or"
        " start the run anew."
    )


@contextmanager
def _source(path: Path) -> Generator[str]:
    """What to open so that not even a side file is made in the folder."""
    log, index = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    if index.exists():  # a writer is alive, or was killed: the log is shared through this file
        yield f"{path.absolute().as_uri()}?mode=ro"
    elif not log.exists() or log.stat().st_size == 0:
        yield f"{path.absolute().as_uri()}?immutable=1"
    else:
        with tempfile.TemporaryDirectory(prefix="parity-ledger-") as folder:
            for part in (path, log):
                shutil.copy(part, folder)
            yield f"{(Path(folder) / path.name).as_uri()}?mode=ro"
