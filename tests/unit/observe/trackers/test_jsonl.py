import errno
import json
import math
from pathlib import Path

import pytest

from parity.errors import DataError
from parity.observe.trackers.jsonl import JsonlTracker, read_rows


def start(run_dir: Path) -> JsonlTracker:
    tracker = JsonlTracker(run_dir, "project", "run")
    tracker.start({})
    return tracker


def lines(run_dir: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().splitlines()]


def test_a_line_is_on_disk_when_log_returns(tmp_path: Path) -> None:
    tracker = start(tmp_path / "deep" / "run")
    tracker.log(1, {"train/loss": 0.5, "train/entropy": None})
    (line,) = lines(tmp_path / "deep" / "run")
    assert line["step"] == 1
    assert line["attempt"] == 1
    assert line["train/loss"] == 0.5
    assert line["train/entropy"] is None
    tracker.finish()


class FullDisk:
    """A file on a disk that has room for so many bytes more."""

    def __init__(self, file, room: int) -> None:
        self.room, self._file = room, file

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(bytes(data[: self.room]))
        self.room -= written
        return written

    def close(self) -> None:
        self._file.close()


def test_lines_that_a_full_disk_refuses_come_whole_and_in_order_once_there_is_room(
    tmp_path: Path,
) -> None:
    tracker = start(tmp_path)
    tracker._file = disk = FullDisk(tracker._file, 100)  # pyright: ignore
    tracker.log(1, {"train/loss": 0.5})
    for step in range(2, 300):  # more than any buffer holds
        with pytest.raises(OSError, match="No space left"):
            tracker.log(step, {"train/loss": 0.5})
    disk.room = 10**6
    tracker.log(300, {"train/loss": 0.5})
    tracker.finish()
    assert [line["step"] for line in lines(tmp_path)] == [*range(1, 301)]


def test_what_waits_for_room_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.observe.trackers.jsonl.MAX_UNWRITTEN_BYTES", 1000)
    tracker = start(tmp_path)
    tracker._file = disk = FullDisk(tracker._file, 0)  # pyright: ignore
    for step in range(1, 300):
        with pytest.raises(OSError, match="No space left"):
            tracker.log(step, {"train/loss": 0.5})
    assert len(tracker._unwritten) < 1100
    disk.room = 10**6
    tracker.log(300, {"train/loss": 0.5})  # which finds room, and comes behind what waited
    tracker.finish()
    *waited, last = [line["step"] for line in lines(tmp_path)]
    assert waited == [*range(1, len(waited) + 1)]
    assert last == 300


def test_rows_of_one_step_are_merged_and_sorted(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    tracker.log(0, {"eval/accuracy": 0.25})
    tracker.log(1, {"train/loss": 0.5})
    tracker.log(1, {"eval/accuracy": 0.5})
    tracker.finish()
    assert read_rows(tmp_path) == [
        {"step": 0, "eval/accuracy": 0.25},
        {"step": 1, "train/loss": 0.5, "eval/accuracy": 0.5},
    ]


def test_a_resumed_run_replaces_the_steps_it_went_back_behind(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    for step in range(1, 6):
        tracker.log(step, {"train/loss": float(step)})
    tracker.finish()
    tracker = start(tmp_path)
    tracker.log(3, {"train/loss": 30.0})
    tracker.finish()
    assert [(row["step"], row["train/loss"]) for row in read_rows(tmp_path)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
    ]
    assert len(lines(tmp_path)) == 6  # nothing is deleted


def test_an_evaluation_of_a_step_that_is_trained_again_is_forgotten(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    tracker.log(3, {"train/loss": 3.0})
    tracker.log(3, {"eval/accuracy": 0.5})  # killed before its checkpoint
    tracker.finish()
    tracker = start(tmp_path)
    tracker.log(3, {"train/loss": 4.0})
    tracker.finish()
    assert read_rows(tmp_path) == [{"step": 3, "train/loss": 4.0}]
    tracker = start(tmp_path)
    tracker.log(3, {"eval/accuracy": 0.25})  # a resume that only evaluates
    tracker.finish()
    assert read_rows(tmp_path) == [{"step": 3, "train/loss": 4.0, "eval/accuracy": 0.25}]


def test_a_late_row_of_an_earlier_step_deletes_nothing(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    tracker.log(4, {"train/loss": 4.0})
    tracker.log(3, {"eval/accuracy": 0.5})
    tracker.finish()
    assert [row["step"] for row in read_rows(tmp_path)] == [3, 4]


@pytest.mark.parametrize("torn", [b'{"step": 2, "train/lo', b"\x00\x00\x00", b"\xff\xfe"])
def test_a_torn_last_line_is_set_aside_and_told(
    torn: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(tmp_path).log(1, {"train/loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    assert [row["step"] for row in read_rows(tmp_path)] == [1]
    tracker = start(tmp_path)
    tracker.log(2, {"train/loss": 2.0})
    tracker.finish()
    assert "torn_line" in caplog.text
    assert (tmp_path / "metrics.jsonl.torn").read_bytes() == torn + b"\n"
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]


def test_a_last_line_that_lacks_only_its_newline_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "attempt": 1, "train/loss": 1.0}')
    tracker = start(tmp_path)
    tracker.log(2, {"train/loss": 2.0})
    tracker.finish()
    assert [row["step"] for row in read_rows(path)] == [1, 2]
    assert not caplog.records


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_file_is_fine(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    tracker = start(tmp_path)
    tracker.log(1, {"train/loss": 2.0})
    tracker.finish()
    assert [row["step"] for row in read_rows(tmp_path)] == [1]


def test_unreadable_lines_in_the_middle_are_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "a/b": 1}\ngarbage\n[1]\n{"no": "step"}\n{"step": 2}\n')
    assert read_rows(path) == [{"step": 1, "a/b": 1}, {"step": 2}]
    assert "count=3" in caplog.text


def test_non_finite_values_are_strict_json(tmp_path: Path) -> None:
    tracker = start(tmp_path)
    tracker.log(1, {"train/loss": math.nan})
    tracker.finish()
    raw = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in raw
    (row,) = read_rows(tmp_path)
    assert math.isnan(row["train/loss"])


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metrics\.jsonl doesn't exist"):
        read_rows(tmp_path)
