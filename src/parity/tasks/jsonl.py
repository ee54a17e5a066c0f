"""`tasks.name=jsonl`: one JSON object per line.

One pass over the bytes checks every line and notes where it begins; no record is kept. Then
any task is one seek away. Strictness, stated: UTF-8 (a byte order mark in front is passed
over), one object per line, lines end with a newline (CRLF too; nothing else ends a line),
no repeated key, no NaN or infinity, no number beyond double precision's range, no raw
control character inside a string, no half of a surrogate pair. Blank lines are allowed at the
end only. A last line without a newline is read, and called cut off where it isn't whole.
"""

import io
import json
import math
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy
from numpy.typing import NDArray

from parity.errors import DataError, SourceError
from parity.tasks.config import FileConfig
from parity.tasks.records import (
    BadRecords,
    FileReport,
    RecordReader,
    checked_path,
    kind,
    repeated,
)
from parity.tasks.source import TaskSource
from parity.types import Json, Task

MAX_LINE_BYTES = 64 * 2**20
BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
BLANK = b" \t\r\n"
SUFFIXES = {
    ".jsonl": "",
    ".ndjson": "",
    ".json": "rename it to .jsonl if it has one object per line, else write it so",
    ".parquet": "set tasks.name=parquet",
    ".gz": "decompress it first",
    ".zst": "decompress it first",
}


class JsonlSource(TaskSource):
    """The records of a JSON Lines file."""

    def __init__(self, config: FileConfig, seed: int = 0) -> None:
        """Check and index the file; raises DataError or ConfigError at the first that is wrong.

        Args:
            seed: every source has one; what a file says doesn't depend on it.
        """
        self._path = checked_path(config, SUFFIXES)
        self._reader = RecordReader(config, self._path)
        bad = self._bad = BadRecords(config)
        self._starts, self._lines, hashes = self._index(bad)
        if config.id_column is not None:
            self._drop_repeated(hashes, bad)
        self.report: FileReport = bad.report(self._path, self.size)

    @property
    def size(self) -> int:
        """Usable records."""
        return len(self._starts)

    def task(self, index: int) -> Task:
        """The task of a record; raises DataError where the file is another by now."""
        if not 0 <= index < self.size:
            raise IndexError(f"{self._path} has {self.size} tasks; there is no task {index}.")
        line = int(self._lines[index])
        start = int(self._starts[index])
        try:
            with self._path.open("rb") as file:
                is_changed = _stamp(file) != self._stamp
                file.seek(start)
                found = file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise SourceError(f"{self._path}:{line}: {error}") from error
        if is_changed:
            raise SourceError(
                f"{self._path}:{line}: the file was changed after it was indexed; restore it, or"
                " start again"
            )
        try:
            return self._reader.task(parse_line(found, start), line)
        except DataError as error:
            raise DataError(f"{self._path}:{line}: {error}") from error

    def pass_over(self, index: int, error: DataError) -> None:
        """Go on without a record that can't be used, as `tasks.on_bad` says."""
        self._bad.pass_over(index, f"{self._path}:{self._lines[index]}", error)

    def _index(
        self, bad: BadRecords
    ) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.uint64]]:
        """Where the usable lines begin, their numbers, and the hashes of their ids."""
        starts, lines, hashes = array("q"), array("q"), array("Q")
        blank_lines = range(0)
        with self._path.open("rb") as file:
            self._stamp = _stamp(file)
            for number, start, line in _lines(file, self._path):
                if not line.strip(BLANK):
                    blank_lines = range(blank_lines.start or number, number + 1)
                    continue
                for blank in blank_lines:
                    bad.add(f"{self._path}:{blank}", "a blank line before the end")
                blank_lines = range(0)
                try:
                    hashes.append(self._checked(line, start, number))
                except DataError as error:
                    bad.add(f"{self._path}:{number}", str(error))
                    continue
                starts.append(start)
                lines.append(number)
        return (
            numpy.array(starts, numpy.int64),
            numpy.array(lines, numpy.int64),
            numpy.array(hashes, numpy.uint64),
        )

    def _checked(self, line: bytes, start: int, number: int) -> int:
        """The hash of a usable line's id."""
        record = parse_line(line, start)
        if not self._reader.has_learned:
            self._reader.learn(list(record), f"{self._path}:{number}")
        return self._reader.check(record)

    def _drop_repeated(self, hashes: NDArray[numpy.uint64], bad: BadRecords) -> None:
        """Pass over records whose id came before, as the policy says."""
        is_kept = numpy.ones(self.size, dtype=bool)
        for first, this, task_id in repeated(hashes, lambda index: self.task(index).task_id):
            reason = f"id {task_id!r} was used in line {self._lines[first]} already"
            bad.add(f"{self._path}:{self._lines[this]}", reason)
            is_kept[this] = False
        self._starts, self._lines = self._starts[is_kept], self._lines[is_kept]


def parse_line(line: bytes, start: int = 0) -> dict[str, Json]:
    """The object of one line; raises DataError with the reason alone.

    Args:
        start: position of the line in its file, for the place of a byte that isn't UTF-8.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"byte {start + error.start} of the file (0x{line[error.start]:02x}, byte"
            f" {error.start + 1} of the line) isn't UTF-8"
        ) from error
    try:
        record = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        if "\\u" in text:
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError("half of a surrogate pair, which no UTF-8 text can hold") from error
    except RecursionError as error:
        raise DataError("nested too deeply") from error
    except ValueError as error:
        if not line.endswith(b"\n"):
            raise DataError(f"the last line is cut off (truncated): {error}") from error
        raise DataError(f"not JSON: {reason_of(error)}") from error
    if not isinstance(record, dict):
        hint = " (an array in one file isn't JSON Lines)" if isinstance(record, list) else ""
        raise DataError(f"is {kind(record)}; a record must be an object{hint}")
    return record


def _lines(file: io.BufferedReader, path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), position and bytes of every line, one at a time."""
    head = file.read(len(BOM))
    if head.startswith(UTF16_MARKS):
        raise DataError(f"{path} is UTF-16; write it as UTF-8.")
    start = file.seek(len(BOM) if head == BOM else 0)
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{path}:{number}: a line of more than {MAX_LINE_BYTES >> 20} MiB.")
        yield number, start, line
        start += len(line)


def _stamp(file: io.BufferedReader) -> tuple[int, int, int]:
    """Changes when the file does."""
    stat = os.fstat(file.fileno())
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {again!r} comes twice")
    return found


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is too large for a number")
    return number


def reason_of(error: ValueError) -> str:
    """Why a line isn't JSON, with the place inside the line."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1} of the line"
    return str(error)
