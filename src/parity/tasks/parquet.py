"""`tasks.name=parquet`: one row per task.

One pass in small batches checks every row; only the numbers of usable rows are kept. A task
is then read through its row group; the row groups used last stay decoded, as far as
`CACHE_BYTES` go (one always does). Dates, times and decimals become text (ISO 8601, digits);
binary values, durations and numbers that aren't finite make a row unusable.
"""

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from typing import cast

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from parity.errors import DataError, SourceError
from parity.tasks.config import FileConfig
from parity.tasks.records import (
    BadRecords,
    FileReport,
    RecordReader,
    checked_path,
    repeated,
)
from parity.tasks.source import TaskSource
from parity.types import Json, Task

CACHE_BYTES = 256 * 2**20
BATCH_ROWS = 1024
SUFFIXES = {".parquet": "", ".pq": "", ".jsonl": "set tasks.name=jsonl"}

Row = Mapping[str, object]  # as pyarrow gives it
UNREADABLE = (pyarrow.ArrowException, OSError)


class ParquetSource(TaskSource):
    """The rows of a Parquet file."""

    def __init__(self, config: FileConfig, seed: int = 0) -> None:
        """Check and index the file; raises DataError or ConfigError at the first that is wrong.

        Args:
            seed: every source has one; what a file says doesn't depend on it.
        """
        self._path = checked_path(config, SUFFIXES)
        self._reader = RecordReader(config, self._path)
        try:
            self._file = parquet.ParquetFile(self._path)
        except UNREADABLE as error:
            raise DataError(
                f"{self._path} can't be read as Parquet, or it is cut off: {_first_line(error)}"
            ) from error
        columns = self._file.schema_arrow.names
        if len(set(columns)) != len(columns):
            raise DataError(f"{self._path} has two columns of one name ({', '.join(columns)}).")
        self._reader.learn(columns, str(self._path))
        counts = [
            self._file.metadata.row_group(n).num_rows for n in range(self._file.num_row_groups)
        ]
        self._group_starts = numpy.cumsum([0, *counts], dtype=numpy.int64)
        self._groups: OrderedDict[int, pyarrow.Table] = OrderedDict()
        bad = self._bad = BadRecords(config)
        self._rows, hashes = self._index(bad)
        if config.id_column is not None:
            self._drop_repeated(hashes, bad)
        self.report: FileReport = bad.report(self._path, self.size)

    @property
    def size(self) -> int:
        """Usable rows."""
        return len(self._rows)

    def task(self, index: int) -> Task:
        """The task of a row."""
        if not 0 <= index < self.size:
            raise IndexError(f"{self._path} has {self.size} tasks; there is no task {index}.")
        row = int(self._rows[index])
        group = int(numpy.searchsorted(self._group_starts, row, side="right")) - 1
        table = self._group(group)
        found = cast("list[Row]", table.slice(row - self._group_starts[group], 1).to_pylist())
        try:
            return self._reader.task(_record(found[0]), row + 1)
        except DataError as error:
            raise DataError(f"{self._path}:row {row + 1}: {error}") from error

    def pass_over(self, index: int, error: DataError) -> None:
        """Go on without a row that can't be used, as `tasks.on_bad` says."""
        self._bad.pass_over(index, f"{self._path}:row {self._rows[index] + 1}", error)

    def _group(self, number: int) -> pyarrow.Table:
        """A row group, decoded; those used last stay."""
        if number in self._groups:
            self._groups.move_to_end(number)
            return self._groups[number]
        try:
            table = self._file.read_row_group(number)
        except UNREADABLE as error:
            raise SourceError(
                f"{self._path}: row group {number} can't be read: {_first_line(error)}"
            ) from error
        self._groups[number] = table
        while len(self._groups) > 1 and self._cached_bytes > CACHE_BYTES:
            self._groups.popitem(last=False)
        return table

    @property
    def _cached_bytes(self) -> int:
        return sum(table.nbytes for table in self._groups.values())

    def _index(self, bad: BadRecords) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint64]]:
        """The numbers of the usable rows, from 0, and the hashes of their ids."""
        rows, hashes = array("q"), array("Q")
        for number, found in enumerate(self._all_rows()):
            try:
                if isinstance(found, ValueError):
                    raise DataError(f"a value that can't be read: {_first_line(found)}")
                hashes.append(self._reader.check(_record(found)))
            except DataError as error:
                bad.add(f"{self._path}:row {number + 1}", str(error))
                continue
            rows.append(number)
        return numpy.array(rows, numpy.int64), numpy.array(hashes, numpy.uint64)

    def _all_rows(self) -> Iterator[Row | ValueError]:
        """Every row, in batches that are forgotten again."""
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, use_threads=False):
                yield from _rows_of(batch)
        except UNREADABLE as error:
            raise DataError(f"{self._path} is damaged: {_first_line(error)}") from error

    def _drop_repeated(self, hashes: NDArray[numpy.uint64], bad: BadRecords) -> None:
        """Pass over rows whose id came before, as the policy says."""
        is_kept = numpy.ones(self.size, dtype=bool)
        for first, this, task_id in repeated(hashes, lambda index: self.task(index).task_id):
            reason = f"id {task_id!r} was used in row {self._rows[first] + 1} already"
            bad.add(f"{self._path}:row {self._rows[this] + 1}", reason)
            is_kept[this] = False
        self._rows = self._rows[is_kept]


def _rows_of(batch: pyarrow.RecordBatch) -> Sequence[Row | ValueError]:
    """The rows of a batch; one with a broken value (text that isn't UTF-8) costs itself only."""
    try:
        return cast("list[Row]", batch.to_pylist())
    except ValueError:
        return [_row_of(batch, number) for number in range(batch.num_rows)]


def _row_of(batch: pyarrow.RecordBatch, number: int) -> Row | ValueError:
    try:
        return cast("Row", batch.slice(number, 1).to_pylist()[0])
    except ValueError as error:
        return error


def _record(row: Row) -> dict[str, Json]:
    """A row as JSON values; raises DataError with the reason alone."""
    return {name: _json(name, value) for name, value in row.items()}


def _json(column: str, value: object) -> Json:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise DataError(f"column {column!r} holds {value}, which isn't a JSON number; use null")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list | tuple):  # a map's entries are tuples
        return [_json(column, item) for item in cast("Sequence[object]", value)]
    if isinstance(value, dict):
        fields = cast("Mapping[str, object]", value)
        return {name: _json(column, item) for name, item in fields.items()}
    raise DataError(
        f"column {column!r} holds {type(value).__name__}, which has no JSON form; drop the column"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
