"""Whether the payload files hold what the rows of a ledger say."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from parity.ledger.payload import EpisodePayload, decode_advantages, decode_group
from parity.ledger.schema import DATABASE, LedgerError, reading
from parity.ledger.segments import FOLDER, Place, read_record, whole_records
from parity.ledger.stored import EpisodeFacts, facts_of
from parity.types import NO_VERSION


def payload_faults(connection: sqlite3.Connection, dir: Path) -> tuple[int, int, list[str]]:
    """(payloads read, retired ones, what is wrong) on the surviving lineage."""
    num_read = num_retired = 0
    faults: list[str] = []
    retired = _retired(connection)
    for row in _rows(connection):
        if row["segment"] in retired:
            num_retired += 1
            continue
        num_read += 1
        try:
            faults += _differences(row, read_record(dir, _place(row)))
        except LedgerError as error:
            if row["segment"] not in (retired := retired | _retired_by_now(dir)):
                faults.append(f"{_name(row)}: {error}")
    return num_read, num_retired, faults


def torn_tails(connection: sqlite3.Connection, dir: Path) -> Iterator[str]:
    """Payload files that end in an unfinished record, as a killed process leaves them.

    Files that a writer may be adding to right now (the newest) aren't looked at.
    """
    paths = sorted((dir / FOLDER).glob("*.seg"))
    (newest,) = connection.execute("SELECT COALESCE(MAX(segment), 0) FROM segments").fetchone()
    for path in paths:
        if path.stem.isdecimal() and int(path.stem) < newest:
            end = max((end for _, end in whole_records(path)), default=0)
            if (rest := path.stat().st_size - end) > 0:
                yield f"{path.name} ends with {rest} bytes of a record that was never finished"


def _rows(connection: sqlite3.Connection) -> Iterator[sqlite3.Row]:
    yield from connection.execute(
        "SELECT seq, group_index, episodes, NULL AS num_groups,"
        " segment, position, size_bytes, digest, NULL AS step"
        " FROM surviving_generated WHERE segment IS NOT NULL"
        " UNION ALL SELECT seq, NULL, NULL, num_groups, segment, position,"
        " size_bytes, digest, step FROM surviving_steps WHERE segment IS NOT NULL"
        " ORDER BY segment, position"
    )


def _differences(row: sqlite3.Row, body: bytes) -> list[str]:
    """What a payload says otherwise than its row."""
    if row["step"] is not None:
        found = len(decode_advantages(body))
        wanted = row["num_groups"]
        return [] if found == wanted else [f"{_name(row)}: {found} groups instead of {wanted}"]
    payloads, facts = decode_group(body), facts_of(row)
    if len(payloads) != len(facts):
        return [f"{_name(row)}: {len(payloads)} episodes, the row says {len(facts)}"]
    return [
        f"episode {row['group_index']}/{sibling}: the payload has {fault}"
        for sibling, (payload, said) in enumerate(zip(payloads, facts, strict=True))
        for fault in _episode_faults(payload, said)
    ]


def _episode_faults(payload: EpisodePayload, said: EpisodeFacts) -> Iterator[str]:
    pairs = zip(payload.versions, payload.loss_mask, strict=True)
    versions = [version for version, is_on in pairs if is_on]
    if len(versions) != said.sampled_tokens:
        yield f"{len(versions)} sampled tokens, the row says {said.sampled_tokens}"
    span = (min(versions), max(versions)) if versions else (None, None)
    wanted = (said.min_version, said.max_version)
    if span != wanted or NO_VERSION in versions:
        yield f"versions {span[0]} to {span[1]}, the row says {wanted[0]} to {wanted[1]}"
    if payload.finish_reason != said.finish_reason:
        yield f"finish reason {payload.finish_reason}, the row says {said.finish_reason}"


def _place(row: sqlite3.Row) -> Place:
    return Place(row["segment"], row["position"], row["size_bytes"], row["digest"])


def _name(row: sqlite3.Row) -> str:
    if row["step"] is not None:
        return f"step {row['step']}"
    return f"group {row['group_index']}"


def _retired(connection: sqlite3.Connection) -> frozenset[int]:
    return frozenset(
        number
        for (number,) in connection.execute(
            "SELECT segment FROM segments WHERE retired_at IS NOT NULL"
        )
    )


def _retired_by_now(dir: Path) -> frozenset[int]:
    """A run that goes on may have retired a file since this reader began."""
    with reading(dir / DATABASE) as connection:
        return _retired(connection)
