"""Which payload files may go: those that neither resume nor the configured history needs.

A file goes whole, when every group with a payload in it was lost, or trained so long ago that
no kept checkpoint lies before that step. The rows with their digests stay, so the history can
still be compared, and `segments.retired_at` says that the file was removed on purpose. The
row is changed first: a crash in between leaves a file that the next call removes.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from parity.ledger.schema import DATABASE, LedgerError, connect
from parity.ledger.segments import FOLDER, segment_path

# A payload is needed by a resume where its group is in flight, or ended after the checkpoint.
_NEEDED = """
    SELECT 1 FROM generated g
    WHERE g.seq BETWEEN :first_seq AND :last_seq AND g.segment = :segment AND NOT EXISTS (
        SELECT 1 FROM group_ends e WHERE e.group_index = g.group_index AND (
            (e.state = 'trained' AND e.seq <= :safe_seq) OR
            (e.state <> 'trained' AND e.seq <= :checkpoint_seq)))
    LIMIT 1"""
_STEPS_NEEDED = """
    SELECT 1 FROM steps s
    WHERE s.seq BETWEEN :first_seq AND :last_seq AND s.segment = :segment AND s.seq > :safe_seq
    LIMIT 1"""


def retire(
    dir: Path, *, oldest_checkpoint_step: int, last_step: int, payload_steps: int | None
) -> int:
    """Remove what isn't needed; the number of files removed.

    Args:
        oldest_checkpoint_step: of the checkpoints that are still there.
        payload_steps: as `LedgerConfig` says.
    """
    if payload_steps is None:
        return 0
    oldest_kept = min(oldest_checkpoint_step, last_step - payload_steps)
    try:
        with closing(connect(dir / DATABASE)) as connection:
            connection.row_factory = sqlite3.Row
            safe_seq = _seq_of(connection, oldest_kept)
            checkpoint_seq = _seq_of(connection, oldest_checkpoint_step)
            done = [
                segment
                for segment in _closed_segments(connection)
                if _is_done(connection, segment, safe_seq, checkpoint_seq)
            ]
            now = time.time()
            for segment in done:
                connection.execute(
                    "UPDATE segments SET retired_at = ? WHERE segment = ?",
                    (now, segment["segment"]),
                )
            retired = connection.execute(
                "SELECT segment FROM segments WHERE retired_at IS NOT NULL"
            ).fetchall()
    except sqlite3.Error as error:
        raise LedgerError(f"payloads in {dir / FOLDER} can't be retired ({error}).") from error
    for (segment,) in retired:
        segment_path(dir, segment).unlink(missing_ok=True)
    return len(done)


def _seq_of(connection: sqlite3.Connection, step: int) -> int:
    """The last event of a step on the surviving lineage; 0 before the first."""
    (seq,) = connection.execute(
        "SELECT COALESCE(MAX(seq), 0) FROM surviving_trained WHERE step <= ?", (step,)
    ).fetchone()
    return int(seq)


def _closed_segments(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    """All that are still there but the newest, which is being written."""
    return connection.execute(
        "SELECT * FROM segments WHERE retired_at IS NULL"
        " AND segment < (SELECT MAX(segment) FROM segments) ORDER BY segment"
    ).fetchall()


def _is_done(
    connection: sqlite3.Connection, segment: sqlite3.Row, safe_seq: int, checkpoint_seq: int
) -> bool:
    values = {
        "segment": segment["segment"],
        "first_seq": segment["first_seq"],
        "last_seq": segment["last_seq"],
        "safe_seq": safe_seq,
        "checkpoint_seq": min(safe_seq, checkpoint_seq),
    }
    return not any(
        connection.execute(query, values).fetchone() for query in (_NEEDED, _STEPS_NEEDED)
    )
