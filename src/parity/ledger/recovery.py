"""A new ledger, or the old one again from where a checkpoint stands.

`resume` reads the state at the checkpoint's mark, opens a new branch there (one row, one
transaction: every later event of the processes before is superseded from then on), adds the
`committed` row where the process died between publishing the checkpoint and writing it, and
says which groups can be reused. Called twice, or killed in between, it does the same again.

A generated group is reusable where all its siblings were generated and scored, all their
tokens are of versions that this lineage has (a superseded process's later weights are gone),
none is older than the bound allows, and the payloads are intact.
"""

import logging
import math
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, cast

from parity.errors import CheckpointError
from parity.ledger.config import LedgerConfig
from parity.ledger.ledger import Counts, Ledger, Mark, OpenGroup
from parity.ledger.schema import DATABASE, LedgerError, connect, damaged, define, is_made
from parity.ledger.segments import read_record
from parity.ledger.stored import StoredGroup, facts_of, place_of, rewards_of
from parity.ledger.writer import lock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A group that was issued at the checkpoint and must be trained or lost by this process."""

    index: int
    task_id: str
    task_position: int
    epoch: int
    size: int
    attempt: int  # of the issue before


@dataclass(frozen=True, slots=True)
class Recovery:
    """What goes on: the place of the task source, and what became of the open groups."""

    mark: Mark
    in_flight: tuple[InFlight, ...]  # in the order of issue; they come before any new group
    reusable: Mapping[int, StoredGroup]  # by index; also of groups issued after the checkpoint
    counts: Counts


def create_ledger(
    dir: Path, *, max_lag: float, config: LedgerConfig, start: Mark | None = None
) -> Ledger:
    """A new ledger in the folder `dir`, made in one transaction; LedgerError where there is one.

    Args:
        max_lag: of the run; no token older than its ceiling is trained.
        start: where a run without a ledger so far goes on; None: the beginning.
    """
    path = dir / DATABASE
    begin = replace(start, seq=0) if start is not None else Mark()
    max_age = math.ceil(max_lag)
    try:
        dir.mkdir(parents=True, exist_ok=True)
        lock_file = lock(dir)
    except OSError as error:
        raise _not_made(path, error) from error
    try:
        if is_made(path):
            raise LedgerError(
                f"{path} exists already; a run has one ledger, so resume the run, or start another."
            )
        with closing(connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            define(connection)
            _open_branch(connection, begin, max_age)
            connection.execute("COMMIT")
        return _ledger(dir, config, lock_file, max_age, Counts(0, 0, 0, 0), {}, begin)
    except (OSError, sqlite3.Error) as error:
        lock_file.close()
        raise _not_made(path, error) from error
    except BaseException:
        lock_file.close()
        raise


def _not_made(path: Path, error: Exception) -> LedgerError:
    return LedgerError(f"the ledger {path} can't be made ({error}); set output.dir.")


def resume_ledger(
    dir: Path, mark: Mark | None, *, max_lag: float, config: LedgerConfig
) -> tuple[Ledger, Recovery]:
    """The ledger of an earlier process, from a checkpoint's mark (None: from the beginning).

    Raises CheckpointError where the mark isn't of this ledger, LedgerError where another
    process writes it or it can't be read.
    """
    path = dir / DATABASE
    if not is_made(path):
        if mark is None:  # killed while it made the ledger: nothing had happened yet
            ledger = create_ledger(dir, max_lag=max_lag, config=config)
            return ledger, Recovery(Mark(), (), {}, Counts(0, 0, 0, 0))
        raise LedgerError(f"there is no ledger at {path}; it was removed, so the run can't resume.")
    lock_file = lock(dir)
    max_age = math.ceil(max_lag)
    try:
        with closing(connect(path)) as connection:
            connection.row_factory = sqlite3.Row
            at = _first_mark(connection) if mark is None else mark
            _check(connection, at, dir)
            connection.execute("BEGIN IMMEDIATE")
            _open_branch(connection, at, max_age)
            recovery = Recovery(
                mark=at,
                in_flight=_in_flight(connection),
                reusable=_reusable(connection, dir, at, max_age=max_age),
                counts=_counts(connection),
            )
            open_groups = {
                group.index: _reopened(connection, group) for group in recovery.in_flight
            }
            connection.execute("COMMIT")
        ledger = _ledger(dir, config, lock_file, max_age, recovery.counts, open_groups, at)
        _complete_commit(ledger, path, at)
        return ledger, recovery
    except sqlite3.Error as error:
        lock_file.close()
        raise damaged(path, error) from error
    except BaseException:
        lock_file.close()
        raise


def _ledger(
    dir: Path,
    config: LedgerConfig,
    lock_file: TextIO,
    max_age: int,
    counts: Counts,
    open_groups: Mapping[int, OpenGroup],
    at: Mark,
) -> Ledger:
    return Ledger(
        dir,
        config,
        lock_file=lock_file,
        max_age=max_age,
        counts=counts,
        open_groups=open_groups,
        next_group=at.next_group,
        last_step=at.step,
    )


def _first_mark(connection: sqlite3.Connection) -> Mark:
    row = connection.execute("SELECT * FROM branches ORDER BY branch LIMIT 1").fetchone()
    return Mark(row["step"], row["version"], 0, row["task_position"], row["next_group"])


def _check(connection: sqlite3.Connection, at: Mark, dir: Path) -> None:
    """The mark must be of the lineage that survives now: the ledger holds what it stands after."""
    (last,) = connection.execute("SELECT last_seq FROM written").fetchone()
    row = connection.execute(
        "SELECT (SELECT COALESCE(MAX(step), (SELECT step FROM branches WHERE branch = 1))"
        "   FROM surviving_steps WHERE seq <= :seq) AS step,"
        " (SELECT COALESCE(MAX(group_index) + 1,"
        "     (SELECT next_group FROM branches WHERE branch = 1))"
        "   FROM surviving_issued WHERE seq <= :seq) AS next_group,"
        " :seq = 0 OR EXISTS (SELECT 1 FROM lineage"
        "   WHERE :seq BETWEEN first_seq AND last_seq) AS is_surviving",
        {"seq": at.seq},
    ).fetchone()
    found = (row["step"], row["next_group"])
    if not row["is_surviving"] or found != (at.step, at.next_group):
        raise CheckpointError(
            f"the checkpoint of step {at.step} stands after event {at.seq} of the ledger, with"
            f" {at.next_group} groups issued, but {dir} has {last} events and at that point step"
            f" {found[0]} and {found[1]} groups; it is of another run, or of a part that a resume"
            " from an older checkpoint replaced, or the ledger was altered (`parity audit` tells)."
        )


def _open_branch(connection: sqlite3.Connection, at: Mark, max_age: int) -> None:
    """The one row that supersedes what came after the mark."""
    connection.execute(
        "INSERT INTO branches SELECT COALESCE(MAX(branch), 0) + 1, ?, ?,"
        " (SELECT last_seq FROM written) + 1, ?, ?, ?, ?, ? FROM branches",
        (time.time(), at.seq, at.step, at.version, at.task_position, at.next_group, max_age),
    )


def _complete_commit(ledger: Ledger, path: Path, at: Mark) -> None:
    """The process may have died after publishing the checkpoint and before its row."""
    with closing(connect(path)) as connection:
        found = connection.execute(
            "SELECT 1 FROM surviving_committed WHERE ledger_seq = ?", (at.seq,)
        ).fetchone()
    if found is None and at.seq > 0:
        _log.info("event=commit_completed step=%d ledger_seq=%d", at.step, at.seq)
        ledger.commit(at)


def _counts(connection: sqlite3.Connection) -> Counts:
    row = connection.execute("SELECT * FROM conservation").fetchone()
    return Counts(row["issued"], row["trained"], row["dropped"], row["failed"])


def _in_flight(connection: sqlite3.Connection) -> tuple[InFlight, ...]:
    rows = connection.execute("SELECT * FROM in_flight ORDER BY group_index").fetchall()
    return tuple(
        InFlight(
            index=row["group_index"],
            task_id=row["task"],
            task_position=row["task_position"],
            epoch=row["epoch"],
            size=row["size"],
            attempt=row["attempt"],
        )
        for row in rows
    )


def _reopened(connection: sqlite3.Connection, group: InFlight) -> OpenGroup:
    found = connection.execute(
        "SELECT 1 FROM surviving_admitted WHERE group_index = ? AND attempt = ?",
        (group.index, group.attempt),
    ).fetchone()
    return OpenGroup(group.size, group.attempt, is_inherited=True, is_admitted=found is not None)


# Every generated and scored group that hasn't ended, with its payload, once per attempt.
# `shared_version`: a superseded row shares its weights with this lineage up to the version at
# which the earliest fork since then left it, which is the least version of all later branches.
# `is_here`: on the lineage that goes on, in the group's newest attempt.
_CANDIDATES = """
    SELECT g.*, i.task, i.task_position, i.size, r.results,
        (SELECT MIN(b.version) FROM branches b WHERE b.first_seq > g.seq) AS shared_version,
        g.attempt = o.attempt AND EXISTS (
            SELECT 1 FROM lineage l WHERE g.seq BETWEEN l.first_seq AND l.last_seq) AS is_here,
        EXISTS (
            SELECT 1 FROM lineage l WHERE r.seq BETWEEN l.first_seq AND l.last_seq) AS is_scored
    FROM generated g
    LEFT JOIN in_flight o ON o.group_index = g.group_index
    JOIN issued i ON i.seq = (
        SELECT MAX(seq) FROM issued WHERE group_index = g.group_index AND seq < g.seq)
    JOIN scored r ON r.seq = (
        SELECT MAX(s.seq) FROM scored s
        WHERE s.group_index = g.group_index AND s.seq > g.seq
            AND s.seq < COALESCE((
                SELECT MIN(n.seq) FROM generated n
                WHERE n.group_index = g.group_index AND n.seq > g.seq), s.seq + 1))
    WHERE g.group_index NOT IN (SELECT group_index FROM group_ends)
        AND g.segment IN (SELECT segment FROM segments WHERE retired_at IS NULL)
    ORDER BY g.group_index, is_here, g.seq"""


def _reusable(
    connection: sqlite3.Connection, dir: Path, at: Mark, *, max_age: int
) -> dict[int, StoredGroup]:
    # The last row of a group counts: one of this lineage, else the newest that is valid.
    by_group: dict[int, sqlite3.Row] = {}
    for row in connection.execute(_CANDIDATES):
        if row["is_here"] or _is_valid(row, at, max_age):
            by_group[row["group_index"]] = row
    return {
        index: stored
        for index, row in by_group.items()
        if _is_valid(row, at, max_age)
        and len((stored := _stored(dir, row)).episodes) == row["size"]
        and _is_intact(stored)
    }


def _is_valid(row: sqlite3.Row, at: Mark, max_age: int) -> bool:
    """Whether this lineage has the weights of every token, and none is too old."""
    oldest, newest = at.version - max_age, row["shared_version"]
    return all(
        facts.min_version is None
        or oldest <= facts.min_version <= cast("int", facts.max_version) <= newest
        for facts in facts_of(row)
    )


def _stored(dir: Path, row: sqlite3.Row) -> StoredGroup:
    place = place_of(row)
    assert place is not None, "the query asks for rows with a segment"
    return StoredGroup(
        dir=dir,
        index=row["group_index"],
        task_id=row["task"],
        task_position=row["task_position"],
        prompt_tokens=row["prompt_tokens"],
        episodes=facts_of(row),
        rewards=rewards_of(row),
        place=place,
        is_generated_here=bool(row["is_here"]),
        is_scored_here=bool(row["is_here"] and row["is_scored"]),
    )


def _is_intact(group: StoredGroup) -> bool:
    """Whether the payload is as it was written; after a power loss the last may not be."""
    try:
        read_record(group.dir, group.place)
    except LedgerError as error:
        _log.warning("event=payload_not_reusable group=%d reason=%s", group.index, error)
        return False
    return True
