"""The proofs that a ledger gives: nothing lost, nothing trained twice, nothing too old.

Used by `parity audit` and by tests. Every proof is a question to the database (or to the
payload files) that finds what breaks a law; it holds where nothing is found. Reading only:
it works on a run that goes on, on a killed one, and on a copied folder.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from parity.ledger.files import payload_faults, torn_tails
from parity.ledger.ledger import Counts
from parity.ledger.schema import DATABASE, EVENTS, OUTCOME, LedgerError, reading, statements
from parity.ledger.stored import outcome_of, rewards_of
from parity.types import Scored

MAX_SHOWN = 5  # findings that a proof shows


@dataclass(frozen=True, slots=True)
class Proof:
    """One law: `faults` are the findings that break it (the first few), `num_faults` how many."""

    name: str
    says: str  # what holds, with its numbers
    faults: tuple[str, ...] = ()
    num_faults: int = 0

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return self.num_faults == 0


@dataclass(frozen=True, slots=True)
class Loss:
    """Groups that weren't trained, or episodes without a reward, by reason."""

    what: str  # dropped, failed (groups); unscored, grader_failed (episodes)
    reason: str
    number: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What a ledger proves, and what it counts on the surviving lineage; None: unreadable."""

    proofs: tuple[Proof, ...]
    counts: Counts | None = None
    losses: tuple[Loss, ...] = ()
    steps: int | None = None  # the newest one
    committed_step: int | None = None  # of the newest checkpoint
    superseded_events: int | None = None
    resumes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every proof holds."""
        return all(proof.holds for proof in self.proofs)


def audit(dir: Path) -> Audit:
    """Audit the ledger folder `dir`.

    Raises LedgerError where there is no ledger; a damaged one is a proof that doesn't hold.
    """
    path = dir / DATABASE
    if not path.is_file():
        raise LedgerError(f"there is no ledger at {path}; only `parity train` runs have one.")
    try:
        with reading(path) as connection:
            connection.row_factory = sqlite3.Row
            proofs = [_readable(connection)]
            if proofs[0].holds:
                proofs += [law(connection) for law in _LAWS]
                proofs.append(_payloads(connection, dir))
                return _counted(connection, dir, tuple(proofs))
    except LedgerError as error:
        proofs = [Proof("database", "the database can be read", (str(error),), 1)]
    return Audit(tuple(proofs))


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 resume, 2 resumes."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _proof(name: str, says: str, faults: Iterator[str] | list[str]) -> Proof:
    found = list(faults)
    return Proof(name, says, tuple(found[:MAX_SHOWN]), len(found))


def _readable(connection: sqlite3.Connection) -> Proof:
    """SQLite finds no damage, and tables and views are those that Parity makes."""
    faults = [r[0] for r in connection.execute("PRAGMA integrity_check") if r[0] != "ok"]
    found = dict(
        connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
        ).fetchall()
    )
    wanted = statements()
    names = sorted(found.keys() | wanted.keys())
    faults += [f"{n} isn't defined as written" for n in names if found.get(n) != wanted.get(n)]
    return _proof("database", "the database is whole and has its own tables", faults)


def _numbering(connection: sqlite3.Connection) -> Proof:
    """Every number from 1 to the last one written belongs to exactly one event."""
    union = " UNION ALL ".join(f"SELECT seq, '{table}' AS name FROM {table}" for table in EVENTS)
    (last,) = connection.execute("SELECT last_seq FROM written").fetchone()
    rows = connection.execute(
        f"SELECT seq, name, LAG(seq, 1, 0) OVER (ORDER BY seq) AS before FROM ({union})"
        " ORDER BY seq"
    )
    faults: list[str] = []
    newest = 0
    for seq, name, before in rows:
        if seq == before:
            faults.append(f"event {seq} is there twice, also in {name}")
        elif seq != before + 1:
            faults.append(f"events {before + 1} to {seq - 1} are missing")
        newest = seq
    if newest < last:
        faults.append(f"events {newest + 1} to {last} are missing")
    if newest > last:
        faults.append(f"events {last + 1} to {newest} were added from outside")
    return _proof("numbering", f"no event is missing of {last}", faults)


def _lineage(connection: sqlite3.Connection) -> Proof:
    """Every resume goes on from an event that survived the resumes before it."""
    rows = connection.execute("SELECT * FROM branches ORDER BY branch").fetchall()
    faults: list[str] = []
    alive: list[range] = []
    for number, row in enumerate(rows, start=1):
        if row["branch"] != number:
            faults.append(f"the record of start {number} is missing")
        fork, first = row["fork_seq"], row["first_seq"]
        if fork and not any(fork in part for part in alive):
            faults.append(f"start {row['branch']} goes on from event {fork}, which is superseded")
        alive = [range(p.start, min(p.stop, first, fork + 1)) for p in alive]
        alive.append(range(first, 2**62))
    return _proof(
        "lineage",
        f"{counted(max(0, len(rows) - 1), 'resume')}, each from a surviving event",
        faults,
    )


def _conservation(connection: sqlite3.Connection) -> Proof:
    row = connection.execute("SELECT * FROM conservation").fetchone()
    parts = [f"{name.replace('_', ' ')} {row[name]}" for name in row.keys()[1:]]
    equation = f"issued {row['issued']} = {' + '.join(parts)}"
    accounted = sum(row[name] for name in row.keys()[1:])
    faults = [] if accounted == row["issued"] else [f"not so: {equation}; they sum to {accounted}"]
    faults += _found(
        connection,
        "SELECT group_index, COUNT(*) AS number FROM group_ends GROUP BY group_index"
        " HAVING COUNT(*) > 1",
        "group {group_index} has {number} ends",
    )
    faults += _found(
        connection,
        "SELECT group_index, state FROM group_ends e"
        " WHERE NOT EXISTS (SELECT 1 FROM groups g WHERE g.group_index = e.group_index)",
        "group {group_index} is {state} but was never issued",
    )
    return _proof("conservation", equation, faults)


def _order(connection: sqlite3.Connection) -> Proof:
    """A trained group was issued, generated, scored and admitted before, in its last attempt."""
    faults = _found(
        connection,
        f"""SELECT t.group_index, t.step, g.size,
            (SELECT COALESCE(SUM(json_array_length(e.episodes)), 0) FROM surviving_generated e WHERE
                e.group_index = t.group_index AND e.attempt = t.attempt AND e.seq < t.seq) AS made,
            (SELECT COUNT(*) FROM surviving_scored e, json_each(e.results) r WHERE
                e.group_index = t.group_index AND e.attempt = t.attempt AND e.seq < t.seq
                AND {OUTCOME} IN ('scored', 'unscored', 'grader_failed')) AS judged,
            (SELECT COUNT(*) FROM surviving_admitted e WHERE
                e.group_index = t.group_index AND e.attempt = t.attempt AND e.seq < t.seq) AS taken
        FROM surviving_trained t LEFT JOIN groups g ON g.group_index = t.group_index
        WHERE made IS NOT g.size OR judged IS NOT g.size OR taken <> 1
            OR t.attempt IS NOT g.attempt""",
        "group {group_index} of step {step} has {made} generated and {judged} scored of {size}"
        " episodes and {taken} admissions before it",
    )
    for table in ("generated", "scored"):
        faults += _found(
            connection,
            f"SELECT group_index, COUNT(*) AS number FROM surviving_{table}"
            " GROUP BY group_index, attempt HAVING COUNT(*) > 1",
            f"group {{group_index}} is {table} {{number}} times",
        )
    return _proof("order", "every trained group was generated, scored and admitted before", faults)


def _once(connection: sqlite3.Connection) -> Proof:
    faults = _found(
        connection,
        "SELECT group_index, COUNT(*) AS number, GROUP_CONCAT(step, ' and ') AS steps"
        " FROM surviving_trained GROUP BY group_index HAVING COUNT(*) > 1",
        "group {group_index} is trained {number} times, at steps {steps}",
    )
    faults += _found(
        connection,
        "SELECT task_position, COUNT(*) AS number, GROUP_CONCAT(group_index, ' and ') AS found"
        " FROM groups GROUP BY task_position HAVING COUNT(*) > 1",
        "the task at position {task_position} is drawn {number} times, for groups {found}",
    )
    (number,) = connection.execute("SELECT COUNT(*) FROM surviving_trained").fetchone()
    return _proof("once", f"none of {counted(number, 'trained group')} is trained twice", faults)


def _skipped(connection: sqlite3.Connection) -> Proof:
    """Groups are numbered without a gap, and the tasks are drawn in their order."""
    (first,) = connection.execute("SELECT next_group FROM branches ORDER BY branch").fetchone()
    faults = _found(
        connection,
        "SELECT group_index, LAG(group_index, 1, :first - 1) OVER (ORDER BY group_index) AS before,"
        " task_position, LAG(task_position, 1, -1) OVER (ORDER BY group_index) AS drawn"
        " FROM groups",
        "group {group_index} (task position {task_position}) follows group {before} (position"
        " {drawn})",
        {"first": first},
        lambda row: row["group_index"] != row["before"] + 1 or row["task_position"] <= row["drawn"],
    )
    return _proof("none skipped", "groups are issued without a gap, in the order of tasks", faults)


def _age(connection: sqlite3.Connection) -> Proof:
    faults = _found(
        connection,
        "SELECT * FROM ages WHERE version - oldest > max_age OR newest > version ORDER BY step",
        "group {group_index} of step {step} has tokens of versions {oldest} to {newest} at version"
        " {version}; at most {max_age} older is allowed",
    )
    oldest, bound = connection.execute(
        "SELECT MAX(version - oldest), MAX(max_age) FROM ages"
    ).fetchone()
    says = (
        "no group was trained yet"
        if oldest is None
        else f"the oldest trained token is {counted(oldest, 'version')} old, the bound is {bound}"
    )
    return _proof("age", says, faults)


def _steps(connection: sqlite3.Connection) -> Proof:
    (first,) = connection.execute("SELECT step FROM branches ORDER BY branch").fetchone()
    faults = _found(
        connection,
        "SELECT s.step, s.num_groups, LAG(s.step, 1, :first) OVER (ORDER BY s.seq) AS before,"
        " (SELECT COUNT(*) FROM surviving_trained t WHERE t.step = s.step) AS found"
        " FROM surviving_steps s",
        "step {step} follows step {before} and has {found} groups of {num_groups}",
        {"first": first},
        lambda row: row["step"] != row["before"] + 1 or row["found"] != row["num_groups"],
    )
    faults += _found(
        connection,
        "SELECT group_index, step FROM surviving_trained"
        " WHERE step NOT IN (SELECT step FROM surviving_steps)",
        "group {group_index} is trained at step {step}, which isn't recorded",
    )
    (last,) = connection.execute("SELECT MAX(step) FROM surviving_steps").fetchone()
    return _proof("steps", f"steps {first + 1} to {last or first} follow each other", faults)


def _commits(connection: sqlite3.Connection) -> Proof:
    """A checkpoint's step and next group are what the ledger says at its place."""
    faults = _found(
        connection,
        """SELECT c.step, c.ledger_seq, c.next_group,
            COALESCE((SELECT MAX(step) FROM surviving_steps WHERE seq <= c.ledger_seq),
                (SELECT step FROM branches WHERE branch = 1)) AS found,
            COALESCE((SELECT MAX(group_index) + 1 FROM surviving_issued WHERE seq <= c.ledger_seq),
                (SELECT next_group FROM branches WHERE branch = 1)) AS issued
        FROM surviving_committed c WHERE c.ledger_seq >= c.seq OR found IS NOT c.step
            OR issued IS NOT c.next_group""",
        "the checkpoint of step {step} after event {ledger_seq} says that {next_group} groups were"
        " issued, but there the ledger has step {found} and {issued} groups",
    )
    (number,) = connection.execute("SELECT COUNT(*) FROM surviving_committed").fetchone()
    stand = "stands" if number == 1 else "stand"
    says = f"{counted(number, 'checkpoint')} {stand} where the ledger says"
    return _proof("checkpoints", says, faults)


def _payloads(connection: sqlite3.Connection, dir: Path) -> Proof:
    num_read, num_retired, faults = payload_faults(connection, dir)
    are = "is as it was" if num_read == 1 else "are as they were"
    says = f"{counted(num_read, 'payload')} {are} written"
    if num_retired:
        says += f", {num_retired} {'was' if num_retired == 1 else 'were'} retired"
    return _proof("payloads", says, faults)


_LAWS: tuple[Callable[[sqlite3.Connection], Proof], ...] = (
    _numbering,
    _lineage,
    _conservation,
    _order,
    _once,
    _skipped,
    _age,
    _steps,
    _commits,
)


def _found(
    connection: sqlite3.Connection,
    query: str,
    sentence: str,
    values: dict[str, int] | None = None,
    is_fault: Callable[[sqlite3.Row], bool] = lambda row: True,
) -> list[str]:
    """One sentence per row of a query that is a fault."""
    rows = connection.execute(query, values or {})
    return [sentence.format(**dict(row)) for row in rows if is_fault(row)]


def _counted(connection: sqlite3.Connection, dir: Path, proofs: tuple[Proof, ...]) -> Audit:
    row = connection.execute("SELECT * FROM conservation").fetchone()
    losses = [Loss(*r) for r in connection.execute("SELECT * FROM losses")]
    losses += _without_reward(connection)
    step, committed, superseded, resumes = connection.execute(
        "SELECT (SELECT MAX(step) FROM surviving_steps),"
        " (SELECT MAX(step) FROM surviving_committed),"
        " (SELECT last_seq FROM written)"
        " - (SELECT SUM(MAX(0, last_seq - first_seq + 1)) FROM lineage),"
        " (SELECT COUNT(*) - 1 FROM branches)"
    ).fetchone()
    return Audit(
        proofs=proofs,
        counts=Counts(row["issued"], row["trained"], row["dropped"], row["failed"]),
        losses=tuple(losses),
        steps=step,
        committed_step=committed,
        superseded_events=superseded,
        resumes=resumes,
        notes=tuple(torn_tails(connection, dir)),
    )


def _without_reward(connection: sqlite3.Connection) -> list[Loss]:
    """Episodes by outcome and reason, the most frequent first."""
    rows = connection.execute("SELECT * FROM surviving_scored WHERE results LIKE '%reason%'")
    found = Counter(
        (outcome_of(reward), reward.reason)
        for row in rows
        for reward in rewards_of(row)
        if not isinstance(reward, Scored)
    )
    order = sorted(found.items(), key=lambda item: (-item[1], item[0][1]))
    return [Loss(outcome, reason, number) for (outcome, reason), number in order]
