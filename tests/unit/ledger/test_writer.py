"""The writer never loses an event in silence: a full disk or a stuck one reaches the caller."""

import errno
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import fakes
import pytest

from parity.errors import DeadlineError
from parity.ledger import segments, writer
from parity.ledger.audit import audit
from parity.ledger.config import LedgerConfig
from parity.ledger.ledger import Ledger
from parity.ledger.recovery import create_ledger, resume_ledger
from parity.ledger.schema import DATABASE, LedgerError, damaged
from parity.types import Scored

CONFIG = LedgerConfig(linger_s=0.001, max_wait_s=5.0)


def tell(ledger: Ledger, index: int) -> None:
    ledger.issued(index, task=fakes.task(index), position=index, epoch=0, size=1)
    ledger.generated(index, [fakes.episode(fakes.task(index), *range(40))])
    ledger.scored(index, [Scored(1.0)])
    ledger.admitted(index)


def test_what_was_flushed_is_seen_by_others_and_what_is_queued_follows_soon(tmp_path: Path):
    with create_ledger(tmp_path, max_lag=0, config=CONFIG) as ledger:
        tell(ledger, 0)
        ledger.flush(is_durable=False)
        with closing(sqlite3.connect(tmp_path / DATABASE)) as other:
            assert other.execute("SELECT last_seq FROM written").fetchone() == (4,)
            tell(ledger, 1)
            deadline = time.monotonic() + 10
            while other.execute("SELECT last_seq FROM written").fetchone() != (8,):
                assert time.monotonic() < deadline, "queued events aren't written by themselves"
                time.sleep(0.002)
    assert audit(tmp_path).holds


def test_a_closed_ledger_is_one_file_that_can_be_copied(tmp_path: Path):
    with create_ledger(tmp_path, max_lag=0, config=CONFIG) as ledger:
        tell(ledger, 0)
    assert {path.name for path in tmp_path.iterdir()} == {DATABASE, "payloads", "writer.lock"}
    with pytest.raises(LedgerError, match="is closed"):
        tell(ledger, 1)
    ledger.close()


def test_a_full_disk_reaches_the_next_call_and_every_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ledger = create_ledger(tmp_path, max_lag=0, config=CONFIG)
    tell(ledger, 0)
    ledger.flush()
    mark = ledger.mark(version=0, task_position=1)
    plain = os.write

    def full(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name == "ledger":
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(descriptor, data)

    monkeypatch.setattr(segments.os, "write", full)
    tell(ledger, 1)
    with pytest.raises(LedgerError, match=r"No space left on device.*parity resume"):
        ledger.flush()
    with pytest.raises(LedgerError, match="No space left"):
        tell(ledger, 2)
    with pytest.raises(LedgerError, match="No space left"):
        ledger.close()
    monkeypatch.undo()
    assert audit(tmp_path).holds
    resumed, found = resume_ledger(tmp_path, mark, max_lag=0, config=CONFIG)
    with resumed:
        assert [group.index for group in found.in_flight] == [0]
        assert list(found.reusable) == [0]


FILLS_THE_DISK = """
import resource, sys
from pathlib import Path
from unit.ledger.test_writer import CONFIG, tell
from parity.ledger.recovery import create_ledger
from parity.ledger.schema import LedgerError
ledger = create_ledger(Path(sys.argv[1]), max_lag=0, config=CONFIG)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    for index in range(100_000):
        tell(ledger, index)
except LedgerError as error:
    print(index, error)
"""


@pytest.mark.parametrize("limit_bytes", [40_000, 400_000])
def test_files_that_cannot_grow_end_the_writer_with_its_reason(tmp_path: Path, limit_bytes: int):
    done = subprocess.run(
        [sys.executable, "-c", FILLS_THE_DISK, str(tmp_path / "ledger"), str(limit_bytes)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    number, _, said = done.stdout.partition(" ")
    assert int(number) < 100_000
    assert "can't be written" in said
    found = audit(tmp_path / "ledger")
    assert found.holds, found


def test_a_disk_that_hangs_is_told_with_what_was_waited_for(tmp_path: Path):
    ledger = create_ledger(tmp_path, max_lag=0, config=CONFIG)
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody else may write
        tell(ledger, 0)
        with pytest.raises(DeadlineError, match=r"waited 0.1 s for event 4 .*event 0 is the last"):
            ledger.flush(timeout_s=0.1)
        other.execute("COMMIT")
    ledger.flush()
    ledger.close()
    assert audit(tmp_path).holds


def test_a_full_queue_holds_the_caller_back_until_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(writer, "MAX_QUEUED", 20)
    slow = LedgerConfig(linger_s=0.001, max_wait_s=0.2)
    ledger = create_ledger(tmp_path, max_lag=0, config=slow)
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match="room in its queue"):
            for index in range(100):
                tell(ledger, index)
        assert 0.2 <= time.monotonic() - begun < 5
        other.execute("COMMIT")
    ledger.flush(timeout_s=10)
    for index in range(200, 203):  # room again: what is refused now is refused for its content
        with pytest.raises(LedgerError, match="the next new one is"):
            tell(ledger, index)
    ledger.close()


def test_many_threads_may_tell_at_once(tmp_path: Path):
    with create_ledger(tmp_path, max_lag=0, config=CONFIG) as ledger:
        for index in range(80):
            ledger.issued(index, task=fakes.task(index), position=index, epoch=0, size=5)

        def answer(first: int) -> None:
            for index in range(first, first + 10):
                ledger.generated(index, [fakes.episode(fakes.task(index), 1, 2)] * 5)
                ledger.scored(index, [Scored(0.5)] * 5)
                ledger.admitted(index)

        threads = [threading.Thread(target=answer, args=(index,)) for index in range(0, 80, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        ledger.trained(1, version=0, advantages={index: [0.0] * 5 for index in range(80)})
    found = audit(tmp_path)
    assert found.holds
    assert found.counts is not None
    assert found.counts.trained == 80


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (sqlite3.SQLITE_FULL, "Free disk space"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "Free disk space"),
        (sqlite3.SQLITE_CORRUPT, "it is damaged"),
        (None, "it is damaged"),
    ],
)
def test_a_disk_that_refuses_is_not_told_as_damage(code: int | None, message: str, tmp_path: Path):
    error = sqlite3.OperationalError("disk I/O error")
    if code is not None:
        error.sqlite_errorcode = code
    said = str(damaged(tmp_path / "ledger.sqlite", error))
    assert message in said
    assert ("start the run anew" in said) == (message == "it is damaged")
