"""Reads measured times: `results.json` of `parity ci run`, or plain JSON lines.

Used by `parity ci audit-times`. A JSON line is `{"path": ..., "backend": ..., "suite": ...,
"time_s": ...}`. Only passes at the first attempt count: a failure ends early and a retry late.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from parity.ci.partition.estimates import Measured
from parity.ci.registry.arguments import finite
from parity.errors import DataError

RESULTS = "results.json"


def read_measured(places: Iterable[Path]) -> list[Measured]:
    """The times in files, and in the results.json files below folders, oldest file first.

    Raises DataError for a place without times and for a record that can't be read.
    """
    files: list[Path] = []
    for place in places:
        found = sorted(place.rglob(RESULTS)) if place.is_dir() else [place]
        if not found:
            raise DataError(f"{place} has no {RESULTS} below it; name a folder of results.")
        files.extend(found)
    try:
        files.sort(key=lambda file: (file.stat().st_mtime, str(file)))
        return [each for file in files for each in _read(file)]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"measured times can't be read ({error}).") from error


def _read(file: Path) -> list[Measured]:
    text = file.read_text(encoding="utf-8")
    if file.name.endswith(".jsonl"):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [
            _measured(_row(line, f"{file}:{number}"), f"{file}:{number}") for number, line in lines
        ]
    row = _row(text, str(file))
    found: list[Measured] = []
    for index, item in enumerate(_list(row.get("files"), f"{file}: files")):
        where = f"{file}: files[{index}]"
        result = _mapping(item, where)
        attempts = _list(result.get("attempts", []), f"{where}.attempts")
        if result.get("outcome") == "pass" and len(attempts) == 1:
            own = {"backend": row.get("backend"), "suite": row.get("suite")}
            found.append(_measured({**result, **own}, where))
    return found


def _row(text: str, where: str) -> Mapping[str, object]:
    try:
        return _mapping(json.loads(text), where)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: isn't JSON ({error}).") from error


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: is {type(value).__name__}; a JSON object is needed.")
    return cast("Mapping[str, object]", value)


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise DataError(f"{where}: is {type(value).__name__}; a JSON list is needed.")
    return cast("list[object]", value)


def _measured(row: Mapping[str, object], where: str) -> Measured:
    words: dict[str, str] = {}
    for key in ("path", "backend", "suite"):
        value = row.get(key)
        if not isinstance(value, str) or not value:
            raise DataError(f"{where}: {key} is {value!r}; a string is needed.")
        words[key] = value
    time_s = finite(row.get("time_s"))
    if time_s is None or time_s < 0:
        raise DataError(f"{where}: time_s is {row.get('time_s')!r}; a number >= 0 is needed.")
    return Measured(time_s=time_s, **words)
