"""The record of a test: one JSON line per metric and step, written by any of its processes.

A test calls `record_metric`; `parity ci run` names the file in PARITY_CI_METRICS, one per attempt,
and reads it with `read_record`. A line is `{"metric": "loss", "step": 3, "value": 0.25}`; a
value that isn't finite is the word "nan", "inf" or "-inf", since JSON has none. Lines of several
processes may alternate but never mix: each is one write to a file opened for appending, under
a lock.
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsFloat, cast

from parity.config import environment
from parity.errors import DataError

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_SHOWN_CHARACTERS = 80
_MOST_BYTES = 64 * 1024**2
_MOST_STEPS = 2**63


@dataclass(frozen=True, slots=True)
class Recorded:
    """One line."""

    metric: str
    step: int
    value: float  # may be nan or infinite: judged as such, never as 0


def record_metric(metric: str, value: SupportsFloat, *, step: int = 0) -> bool:
    """Add one value to the record of this test; False outside `parity ci run`.

    Raises DataError for what isn't a number: an unknown value is not recorded at all.
    """
    path = environment.ci_metrics_path()
    if isinstance(value, bool) or not _is_number(value):
        raise DataError(
            f"{metric} is {value!r}; a recorded metric must be a number. Convert it with float()."
        )
    if path is not None:
        write_record(path, Recorded(metric, step, float(value)))
    return path is not None


def record_metrics(metrics: Mapping[str, SupportsFloat], *, step: int = 0) -> bool:
    """`record_metric` for each of them."""
    for name, value in metrics.items():
        record_metric(name, value, step=step)
    return environment.ci_metrics_path() is not None


def _is_number(value: object) -> bool:
    return isinstance(value, SupportsFloat)  # a NumPy number or a tensor of one element too


def write_record(path: Path, recorded: Recorded) -> None:
    """Append one line."""
    value = recorded.value if math.isfinite(recorded.value) else repr(recorded.value)
    row = {"metric": recorded.metric, "step": recorded.step, "value": value}
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, line)
    finally:
        os.close(file)


def read_record(path: Path) -> list[Recorded]:
    """Every line, in order, duplicates included; none where the test recorded nothing.

    Raises DataError for a line that can't be read.
    """
    if not path.is_file():
        return []
    if (size_bytes := path.stat().st_size) > _MOST_BYTES:
        raise DataError(
            f"{path.name} has {size_bytes} bytes; at most {_MOST_BYTES} are read. Record fewer"
            " steps."
        )
    lines = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    lines = [] if lines == [""] else lines
    return [_parse(line, f"{path.name}:{number}") for number, line in enumerate(lines, start=1)]


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The members of an object; ValueError where a name comes twice, as either may be meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _parse(line: str, place: str) -> Recorded:
    wrong = DataError(
        f"{place}: {line[:_SHOWN_CHARACTERS]!r} isn't a line of a metric record;"
        ' write {"metric": name, "step": whole number, "value": number}, or call record_metric.'
    )
    try:
        row: object = json.loads(line, object_pairs_hook=_once_each)
    except (ValueError, RecursionError) as error:
        raise wrong from error
    if not isinstance(row, dict):
        raise wrong
    fields = cast("dict[str, object]", row)
    metric, step, value = fields.get("metric"), fields.get("step", 0), fields.get("value")
    if isinstance(value, str):
        value = _WORDS.get(value.lower())
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_step = isinstance(step, int) and not isinstance(step, bool) and abs(step) < _MOST_STEPS
    if not (isinstance(metric, str) and metric and is_step and is_number):
        raise wrong
    try:
        return Recorded(metric, cast("int", step), float(cast("float", value)))
    except OverflowError:  # a whole number beyond all floats
        sign = 1 if cast("int", value) > 0 else -1
        return Recorded(metric, cast("int", step), sign * math.inf)
