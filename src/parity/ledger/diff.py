"""The first event at which two runs differ, whatever order their events came in.

Used by `parity diff`. Events are paired by what they are about (the group, the step), on the
surviving lineage and in the newest attempt of each group, so a run that was killed and resumed
can equal one that wasn't. Times, checkpoints and the order in which answers happened to arrive
aren't compared. Of all that differ, the first in the order of either run is named, with the
first sibling where that can be told.
"""

import bisect
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from parity.ledger.payload import EpisodePayload, decode_advantages, decode_group
from parity.ledger.schema import DATABASE, LedgerError, reading
from parity.ledger.segments import read_record
from parity.ledger.stored import EpisodeFacts, place_of
from parity.types import Json

T = TypeVar("T")

# Kind -> (what an event is about, its rows). Every query gives seq, the key, then the contents,
# in the order of the key.
_KINDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "issued": (
        ("group_index",),
        "SELECT issued_seq AS seq, group_index, task, task_position, epoch, size FROM groups"
        " ORDER BY group_index",
    ),
    "generated": (
        ("group_index",),
        "SELECT e.seq, e.group_index, e.prompt_tokens, e.episodes, hex(e.digest) AS digest"
        " FROM surviving_generated e JOIN groups g USING (group_index, attempt)"
        " ORDER BY e.group_index",
    ),
    "scored": (
        ("group_index",),
        "SELECT e.seq, e.group_index, e.results"
        " FROM surviving_scored e JOIN groups g USING (group_index, attempt)"
        " ORDER BY e.group_index",
    ),
    "admitted": (
        ("group_index",),
        "SELECT seq, group_index FROM surviving_admitted ORDER BY group_index",
    ),
    "ended": (
        ("group_index",),
        "SELECT seq, group_index, outcome, reason FROM surviving_ended ORDER BY group_index",
    ),
    "trained": (
        ("group_index",),
        "SELECT seq, group_index, step FROM surviving_trained ORDER BY group_index",
    ),
    "step": (
        ("step",),
        "SELECT seq, step, version, num_groups, hex(digest) AS digest FROM surviving_steps"
        " ORDER BY step",
    ),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One event on both sides; None where a run doesn't have it."""

    kind: str
    key: Mapping[str, int]
    left: Mapping[str, Json] | None
    right: Mapping[str, Json] | None
    details: tuple[str, ...] = ()  # from the payloads

    @property
    def title(self) -> str:
        """The event in words."""
        if self.kind == "step":
            return f"step {self.key['step']}"
        about = "/".join(str(number) for number in self.key.values())
        noun = "episode" if "sibling" in self.key else "group"
        return f"{noun} {about} {self.kind}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many events were compared, how many differ, and the first that does."""

    num_compared: int
    num_different: int
    first: Difference | None


def compare(left_dir: Path, right_dir: Path) -> Comparison:
    """Compare the ledgers in two folders; raises LedgerError where one can't be read."""
    num_compared = num_different = 0
    first: tuple[int, Difference] | None = None
    with ExitStack() as stack:
        sides = [stack.enter_context(reading(dir / DATABASE)) for dir in (left_dir, right_dir)]
        for side in sides:
            side.row_factory = sqlite3.Row
        places = [_Places(side) for side in sides]
        for kind in _KINDS:
            for left, right in _pairs(sides[0], sides[1], kind):
                num_compared += 1
                if _contents(left) == _contents(right):
                    continue
                num_different += 1
                rows = zip((left, right), places, strict=True)
                place = min(at.rank(row["seq"]) for row, at in rows if row is not None)
                if first is None or place < first[0]:
                    first = place, _difference(kind, left, right)
        found = None if first is None else _detailed(first[1], sides, (left_dir, right_dir))
    return Comparison(num_compared, num_different, found)


class _Places:
    """Numbers the events of a lineage without the gaps of what was superseded."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute(
            "SELECT first_seq, last_seq FROM lineage WHERE last_seq >= first_seq ORDER BY first_seq"
        ).fetchall()
        self._firsts = [row["first_seq"] for row in rows]
        self._ranks: list[int] = []
        total = 0
        for row in rows:
            self._ranks.append(total)
            total += row["last_seq"] - row["first_seq"] + 1

    def rank(self, seq: int) -> int:
        part = bisect.bisect_right(self._firsts, seq) - 1
        return self._ranks[part] + seq - self._firsts[part]


def _pairs(
    left: sqlite3.Connection, right: sqlite3.Connection, kind: str
) -> Iterator[tuple[sqlite3.Row | None, sqlite3.Row | None]]:
    """The events of one kind side by side, by key."""
    names, query = _KINDS[kind]

    def key(row: sqlite3.Row) -> tuple[int, ...]:
        return tuple(row[name] for name in names)

    ours, theirs = left.execute(query), right.execute(query)
    one, other = next(ours, None), next(theirs, None)
    while one is not None or other is not None:
        if other is None or (one is not None and key(one) < key(other)):
            yield one, None
            one = next(ours, None)
        elif one is None or key(other) < key(one):
            yield None, other
            other = next(theirs, None)
        else:
            yield one, other
            one, other = next(ours, None), next(theirs, None)


def _contents(row: sqlite3.Row | None) -> tuple[Json, ...] | None:
    return None if row is None else tuple(row)[1:]


def _difference(kind: str, left: sqlite3.Row | None, right: sqlite3.Row | None) -> Difference:
    names, _ = _KINDS[kind]
    known = left if left is not None else right
    assert known is not None
    sides = [
        None
        if row is None
        else {name: row[name] for name in row.keys() if name not in ("seq", *names)}  # noqa: SIM118
        for row in (left, right)
    ]
    return Difference(kind, {name: known[name] for name in names}, sides[0], sides[1])


def _detailed(
    found: Difference, sides: list[sqlite3.Connection], dirs: tuple[Path, Path]
) -> Difference:
    """The difference with its first sibling and what the payloads say, where both sides have it."""
    if found.left is None or found.right is None:
        return found
    sibling: int | None = None
    lines: Sequence[str] = ()
    try:
        if found.kind == "step":
            bodies = [_body(s, d, found) for s, d in zip(sides, dirs, strict=True)]
            lines = _advantage_lines(*(decode_advantages(body) for body in bodies))
        if found.kind == "generated":
            bodies = [_body(s, d, found) for s, d in zip(sides, dirs, strict=True)]
            left, right = (decode_group(body) for body in bodies)
            sibling = _first_unequal(left, right)
            if sibling is not None:
                lines = _token_lines(left[sibling], right[sibling])
    except LedgerError as error:
        lines = (f"its payloads can't be compared: {error}",)
    if found.kind in ("generated", "scored"):
        found = _of_sibling(found, sibling)
    return replace(found, details=tuple(lines))


def _of_sibling(found: Difference, sibling: int | None) -> Difference:
    """The same for one sibling (None: the first whose entry differs), where that can be told."""
    assert found.left is not None and found.right is not None
    column = "results" if found.kind == "scored" else "episodes"
    left, right = (json.loads(str(side[column])) for side in (found.left, found.right))
    if sibling is None:
        sibling = _first_unequal(left, right)
    if sibling is None or sibling >= min(len(left), len(right)):
        return found
    key = {**found.key, "sibling": sibling}
    sides = [
        {name: value for name, value in side.items() if name != column} | _entry(entries[sibling])
        for side, entries in ((found.left, left), (found.right, right))
    ]
    return Difference(found.kind, key, sides[0], sides[1])


def _first_unequal(left: Sequence[T], right: Sequence[T]) -> int | None:
    """The first place at which both have something and it differs."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (one, other) in pairs if one != other), None)


def _entry(entry: Json) -> dict[str, Json]:
    """What the ledger says of one sibling, by name."""
    if isinstance(entry, list):
        return dict(zip(EpisodeFacts._fields, entry, strict=True))
    return entry if isinstance(entry, dict) else {"outcome": "scored", "value": entry}


def _body(connection: sqlite3.Connection, dir: Path, found: Difference) -> bytes:
    if found.kind == "step":
        query = "SELECT * FROM surviving_steps WHERE step = :step"
    else:
        query = (
            "SELECT e.* FROM surviving_generated e JOIN groups g USING (group_index, attempt)"
            " WHERE e.group_index = :group_index"
        )
    place = place_of(connection.execute(query, dict(found.key)).fetchone())
    if place is None:
        raise LedgerError("none was kept (ledger.payload_steps is 0)")
    return read_record(dir, place)


def _token_lines(left: EpisodePayload, right: EpisodePayload) -> Sequence[str]:
    """Where the two episodes part."""
    sides = (left, right)
    columns = [list(zip(s.tokens, s.versions, s.logprobs, s.loss_mask, strict=True)) for s in sides]
    for position, (one, other) in enumerate(zip(*columns, strict=False)):
        if one != other:
            return [
                f"token {position} is {token} (version {version}, log-prob {logprob!r})"
                for token, version, logprob, _ in (one, other)
            ]
    lengths = [len(column) for column in columns]
    if lengths[0] != lengths[1]:
        return [f"{length} tokens, equal up to the shorter end" for length in lengths]
    return [f"equal tokens; finish reason {s.finish_reason}, text {s.response!r}" for s in sides]


def _advantage_lines(
    left: Mapping[int, tuple[float | None, ...]], right: Mapping[int, tuple[float | None, ...]]
) -> Sequence[str]:
    if list(left) != list(right):
        return [f"groups {list(side)}" for side in (left, right)]
    group = next((group for group in left if left[group] != right[group]), None)
    if group is None:
        return ["equal advantages", "equal advantages"]
    return [f"group {group} has advantages {list(side[group])}" for side in (left, right)]
