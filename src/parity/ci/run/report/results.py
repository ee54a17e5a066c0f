"""`results.json`: everything about a shard, for programs (`parity ci audit-times`, uploads).

The fields are those of `run/result.py`, without the tails of the output, which the log files hold.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import cast

from parity.ci.run.result import ShardResult

FORMAT = 1


def as_json(shard: ShardResult) -> dict[str, object]:
    """Plain values, ready for json.dumps; NaN and infinities as words."""
    row = cast("dict[str, object]", _plain(asdict(shard)))
    files = cast("list[dict[str, object]]", row["files"])
    for file, result in zip(files, shard.files, strict=True):
        file["is_flaky"], file["time_s"] = result.is_flaky, result.time_s
        for attempt in cast("list[dict[str, object]]", file["attempts"]):
            del attempt["tail"]
    totals = {
        "format": FORMAT,
        "exit_code": shard.exit_code,
        "flake_rate": shard.flake_rate,
        "empty_problem": shard.empty_problem,
    }
    return {**totals, **row}


def write(shard: ShardResult, path: Path) -> None:
    """Write the file."""
    text = json.dumps(as_json(shard), indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {key: _plain(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, float) and value - value != 0:  # nan, inf or -inf
        return repr(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)
