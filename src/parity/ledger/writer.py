"""The one writer of a ledger: a thread that brings queued events to the disk, in order.

Events are numbered when they are queued, so the caller knows its position at any moment. A
transaction takes everything that is queued; payloads are written before the rows that point
at them. Events queued together (`put`) never fall into two transactions.

Invariants: the queue is bounded, and `put` waits at most `max_wait_s` for room; once the
writer has failed (disk full, a damaged file), every later call raises LedgerError with its
reason, and nothing after the failure is written.
"""

import fcntl
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from parity.errors import DeadlineError
from parity.ledger.config import LedgerConfig
from parity.ledger.schema import DATABASE, EVENTS, LedgerError, connect, insertion
from parity.ledger.segments import SegmentFile, digest_of

MAX_QUEUED = 65_536  # weight of all queued events
_LOCK_FILE = "writer.lock"
_log = logging.getLogger(__name__)
Cell = None | int | float | str | bytes


class Event(NamedTuple):
    """A row to be: its table and its columns after `seq`.

    `more` gives columns that take time to make, `encode` the payload, whose place ends the row;
    both are called on the writer's thread. `weight` is its share of the queue: 1, and more with a
    large payload.
    """

    table: str
    cells: tuple[Cell, ...]
    more: Callable[[], tuple[Cell, ...]] | None = None
    encode: Callable[[], bytes] | None = None
    weight: int = 1


class Writer:
    """Owns the database connection, the current payload file, and the numbering of events."""

    def __init__(self, dir: Path, config: LedgerConfig, lock_file: TextIO) -> None:
        """Go on after the last event in the ledger of `dir`, whose lock the caller took."""
        self._dir = dir
        self._config = config
        self._lock_file = lock_file
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._queue: list[tuple[int, Event]] = []
        self._queued_weight = 0
        self._written = self._durable = self._last = _last_seq(dir)
        self._wanted = self._wanted_durable = 0  # flushed up to here
        self._failure: Exception | None = None
        self._is_closed = self._is_done = False
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    @property
    def last_seq(self) -> int:
        """Number of the newest event that was queued."""
        with self._changed:
            return self._last

    def put(self, events: Sequence[Event]) -> int:
        """Queue events that become visible together; the number of the last one.

        Raises LedgerError where the writer has ended, DeadlineError where the disk is so slow
        that the queue stays full.
        """
        with self._mutex:
            self._check()
            if self._queued_weight >= MAX_QUEUED:
                self._changed.notify_all()
                self._wait(lambda: self._queued_weight < MAX_QUEUED, "room in its queue")
            for event in events:
                self._last += 1
                self._queue.append((self._last, event))
                self._queued_weight += event.weight
            if len(self._queue) == len(events) or self._queued_weight >= MAX_QUEUED // 2:
                self._changed.notify_all()
            return self._last

    def flush(self, *, is_durable: bool, timeout_s: float | None = None) -> None:
        """Wait until everything queued is in the database; durable: and survives power loss."""
        with self._changed:
            self._check()
            target = self._wanted = self._last
            if is_durable:
                self._wanted_durable = target
            self._changed.notify_all()

            def is_there() -> bool:
                return (self._durable if is_durable else self._written) >= target

            self._wait(is_there, f"event {target} to be on the disk", timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Write what is queued and end; raises like `flush`. A second call does nothing."""
        with self._changed:
            if self._is_closed:
                return
        try:
            self.flush(is_durable=True, timeout_s=timeout_s)
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._thread.join(timeout_s or self._config.max_wait_s)
            if not self._thread.is_alive():
                self._lock_file.close()

    def _check(self) -> None:
        if self._failure is not None:
            raise LedgerError(
                f"the ledger in {self._dir} can't be written ({_said(self._failure)}), so the run"
                " can't account for its tasks; free disk space, then `parity resume` the run."
            ) from self._failure
        if self._is_done or self._is_closed:
            raise LedgerError(f"the ledger in {self._dir} is closed; open it again to write.")

    def _wait(
        self, condition: Callable[[], bool], what: str, timeout_s: float | None = None
    ) -> None:
        """Wait for the thread; the caller holds the lock."""
        limit_s = self._config.max_wait_s if timeout_s is None else timeout_s
        self._changed.wait_for(
            lambda: condition() or self._failure is not None or self._is_done, limit_s
        )
        self._check()
        if not condition():
            raise DeadlineError(
                f"the ledger waited {limit_s:g} s for {what}; event {self._written} is the last on"
                f" the disk and {len(self._queue)} more are queued. The disk of {self._dir} is too"
                " slow, or raise ledger.max_wait_s."
            )

    def _work(self) -> None:
        try:
            session = _Session(self._dir, self._config)
            try:
                while (work := self._next()) is not None:
                    batch, is_durable = work
                    session.write(batch, is_durable=is_durable)
                    self._advance(batch, is_durable=is_durable)
                session.fold()
            finally:
                session.close()
        except Exception as error:  # noqa: BLE001 - told to the next caller, who raises it
            with self._changed:
                self._failure = error
            _log.error("event=ledger_failed dir=%s reason=%s", self._dir, _said(error))
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _next(self) -> tuple[list[tuple[int, Event]], bool] | None:
        """Everything queued, once there is something to do; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_urgent())
            # Let more events gather: a transaction costs the same for one as for many.
            self._changed.wait_for(self._is_urgent, self._config.linger_s)
            batch, self._queue = self._queue, []
            is_durable = self._wanted_durable > self._durable
            if not batch and not is_durable and self._is_closed:
                return None
            return batch, is_durable

    def _is_urgent(self) -> bool:
        return (
            self._is_closed
            or self._wanted > self._written
            or self._wanted_durable > self._durable
            or self._queued_weight >= MAX_QUEUED // 2
        )

    def _advance(self, batch: list[tuple[int, Event]], *, is_durable: bool) -> None:
        with self._changed:
            if batch:
                self._written = batch[-1][0]
            if is_durable:
                self._durable = self._written
            self._queued_weight -= sum(event.weight for _, event in batch)
            self._changed.notify_all()


class _Session:
    """What only the thread touches: the connection and the payload file."""

    def __init__(self, dir: Path, config: LedgerConfig) -> None:
        self._dir = dir
        self._config = config
        self._connection = connect(dir / DATABASE)
        self._insertions = {table: insertion(table) for table in EVENTS}
        self._segment: SegmentFile | None = None
        self._is_new_segment = False
        self._is_synchronous = False  # as `connect` leaves it
        self._stores = config.payload_steps != 0

    def write(self, batch: Sequence[tuple[int, Event]], *, is_durable: bool) -> None:
        """One transaction, after the payloads that it points at."""
        rows: dict[str, list[tuple[Cell, ...]]] = {}
        for seq, event in batch:
            more = () if event.more is None else event.more()
            place = () if event.encode is None else self._store(seq, event.encode())
            rows.setdefault(event.table, []).append((seq, *event.cells, *more, *place))
        if self._segment is not None:
            self._segment.write()
            if is_durable:
                self._segment.sync()
        if is_durable != self._is_synchronous:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            self._is_synchronous = is_durable
        self._connection.execute("BEGIN IMMEDIATE")
        for table, some in rows.items():
            self._connection.executemany(self._insertions[table], some)
        if batch:
            self._connection.execute("UPDATE written SET last_seq = ?", (batch[-1][0],))
            self._describe_segment(batch[0][0], batch[-1][0])
        else:  # nothing new, but the transactions before weren't waited for
            self._connection.execute("UPDATE written SET last_seq = last_seq")
        self._connection.execute("COMMIT")
        # A new payload file after each checkpoint, so that whole files can be retired.
        if self._is_full() or "committed" in rows:
            self._finish_segment()

    def fold(self) -> None:
        """Bring the log into the database, so that the folder can be copied as it is."""
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Give the files back."""
        if self._segment is not None:
            self._segment.close()
        self._connection.close()

    def _store(self, seq: int, body: bytes) -> tuple[Cell, ...]:
        digest = digest_of(body)
        if not self._stores:
            return None, None, None, digest
        if self._segment is None:
            self._segment = SegmentFile(self._dir, _next_segment(self._connection, self._dir))
            self._is_new_segment = True
        place = self._segment.append(seq, body, digest)
        return place.segment, place.position, place.size_bytes, digest

    def _describe_segment(self, first_seq: int, last_seq: int) -> None:
        """Inside the transaction: make the current payload file known, or how far it goes."""
        if self._segment is None:
            return
        number, size = self._segment.segment, self._segment.size_bytes
        if self._is_new_segment:
            self._connection.execute(
                "INSERT INTO segments VALUES (?, ?, ?, ?, NULL)",
                (number, first_seq, last_seq, size),
            )
            self._is_new_segment = False
        else:
            self._connection.execute(
                "UPDATE segments SET last_seq = ?, size_bytes = ? WHERE segment = ?",
                (last_seq, size, number),
            )

    def _is_full(self) -> bool:
        limit = self._config.segment_mib * 2**20
        return self._segment is not None and self._segment.size_bytes >= limit

    def _finish_segment(self) -> None:
        if self._segment is not None:
            self._segment.sync()
            self._segment.close()
            self._segment = None


def _next_segment(connection: sqlite3.Connection, dir: Path) -> int:
    """A number that neither the database nor a file left by a killed process has."""
    (newest,) = connection.execute("SELECT COALESCE(MAX(segment), 0) FROM segments").fetchone()
    files = [int(path.stem) for path in (dir / "payloads").glob("*.seg") if path.stem.isdecimal()]
    return max([newest, *files]) + 1


def _last_seq(dir: Path) -> int:
    connection = connect(dir / DATABASE)
    try:
        return int(connection.execute("SELECT last_seq FROM written").fetchone()[0])
    finally:
        connection.close()


def lock(dir: Path) -> TextIO:
    """Keep other writers out (LedgerError for them); the lock ends with the process or the file."""
    file = (dir / _LOCK_FILE).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise LedgerError(
            f"another process writes the ledger in {dir}; wait for its end, or stop it first."
        ) from None
    return file


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
