"""`trackers.names=[jsonl]`: metrics.jsonl in the run folder, one strict JSON line per call.

Both ends are here: `JsonlTracker` writes, `read_rows` reads (curve, dash, audit). A line is
`{"step", "attempt", "unix_s", metrics...}`; `attempt` counts the starts of the run. Invariants:
a line is in the file when `log` returns; lines that a full disk refuses wait for room, in order,
so that none is torn or lost where room is made before the end; a last line that a crash tore off
is set aside at the next start, never glued to a new one; of a step that a resumed run took again,
the reader keeps the newer values, and it forgets steps that the run went back behind.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path

from parity.errors import DataError
from parity.observe.encode import dumps, loads
from parity.observe.trackers.tracker import Tracker
from parity.types import Json

FILE_NAME = "metrics.jsonl"
Row = dict[str, float | None]  # metric name -> value, and "step"
MAX_UNWRITTEN_BYTES = 16 * 2**20  # what waits for room on a full disk; later lines are lost
_KEYS = ("step", "attempt", "unix_s")
_logger = logging.getLogger(__name__)


class JsonlTracker(Tracker):
    """Appends metrics to metrics.jsonl."""

    _file: FileIO | None = None
    _attempt = 1

    def __init__(self, run_dir: Path, project: str, run_name: str) -> None:
        super().__init__(run_dir, project, run_name)
        self._unwritten = bytearray()  # lines, the first maybe without its beginning

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self.run_dir / FILE_NAME

    def start(self, config: Mapping[str, Json]) -> None:
        """Open the file for appending, whatever state the last run left it in."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            set_torn_line_aside(self.path)
            attempts = [int(line["attempt"]) for line in _lines(self.path) if "attempt" in line]
            self._attempt = 1 + max(attempts, default=0)
        self._file = self.path.open("ab", buffering=0)

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write one line, after those that a full disk refused before; raises OSError."""
        if self._file is None:
            raise ValueError("the jsonl tracker isn't started; call start() first.")
        line = {"step": step, "attempt": self._attempt, "unix_s": round(time.time(), 3)}
        if len(self._unwritten) >= MAX_UNWRITTEN_BYTES:
            self._write(
                self._file
            )  # as long as there is no room, this raises, and the line is lost
        self._unwritten += dumps({**line, **metrics}).encode("ascii") + b"\n"
        self._write(self._file)

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            try:
                self._write(self._file)
            finally:
                self._file.close()
                self._file = None

    def _write(self, file: FileIO) -> None:
        while self._unwritten:
            del self._unwritten[: file.write(self._unwritten)]


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl (or of a run folder) by step, one per step.

    Unreadable lines (torn by a crash) are left out with a warning. Raises DataError where
    there is no file.
    """
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise DataError(f"{path} doesn't exist; name a run folder that has a {FILE_NAME}.")
    rows: dict[int, Row] = {}
    attempt = 0.0
    for line in _lines(path):
        step = int(line["step"])
        values = {name: value for name, value in line.items() if name not in _KEYS}
        if line.get("attempt", 0.0) > attempt:
            attempt = line["attempt"]
            # A step that is trained again is told anew: what was evaluated after it, too.
            is_again = any(name.startswith("train/") for name in values)
            newest = step - 1 if is_again else step
            rows = {known: row for known, row in rows.items() if known <= newest}
        rows.setdefault(step, {"step": step}).update(values)
    return [rows[step] for step in sorted(rows)]


def set_torn_line_aside(path: Path) -> None:
    """Make `path` end with a newline: a torn last line moves to `NAME.torn`, with a warning."""
    with path.open("rb+") as file:
        content = file.read()
        if not content or content.endswith(b"\n"):
            return
        keep = content.rfind(b"\n") + 1
        torn = content[keep:]
        if _parse(torn) is not None:  # complete but for its newline
            file.write(b"\n")
            return
        aside = path.with_name(path.name + ".torn")
        with aside.open("ab") as other:
            other.write(torn + b"\n")
        file.truncate(keep)
    _logger.warning("event=torn_line path=%s size_bytes=%s kept_at=%s", path, len(torn), aside.name)


def _lines(path: Path) -> Iterable[dict[str, float]]:
    """Every readable line, as written."""
    num_bad = 0
    with path.open("rb") as file:
        for raw in file:
            line = _parse(raw)
            if line is None:
                num_bad += 1
            else:
                yield line
    if num_bad:
        _logger.warning("event=unreadable_lines path=%s count=%s", path, num_bad)


def _parse(raw: bytes) -> dict[str, float] | None:
    """One line, or None where it isn't one of ours."""
    try:
        line = loads(raw)
    except DataError:
        return None
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        return None
    return line
