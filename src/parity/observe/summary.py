"""summary.json: what a run came to, for people, scripts and `parity compare`.

Invariants: the file appears whole or not at all; a run that failed or was stopped says why, so
it can't look like one that finished; unknown is null. `read` gives back what `write` wrote.
"""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Literal, Self, cast, get_args

import parity
from parity.errors import DataError
from parity.observe.encode import encode, loads

FILE_NAME = "summary.json"
Status = Literal["finished", "failed", "stopped"]
_PACKAGES = ("torch", "transformers")


def installed_versions() -> dict[str, str | None]:
    """Versions of Parity, Python and what decides numbers; None where not installed."""
    found: dict[str, str | None] = {
        "parity": parity.__version__,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to; None where unknown."""

    status: Status
    reason: str | None = None  # why it failed or was stopped
    platform: str  # Parity's platform: cpu, ...
    steps: int  # optimizer steps that the run stands at
    train_seconds: float | None = None  # from the first prompt to the last step, without loading
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])  # by phase
    eval_first: float | None = None  # accuracy before the first step
    eval_last: float | None = None
    tokens_per_s: float | None = None  # as time/tokens_per_s, over the whole run
    versions: Mapping[str, str | None] = field(default_factory=installed_versions)

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise DataError(
                f"status is {self.status!r}; it must be one of {', '.join(get_args(Status))}."
            )
        if self.status != "finished" and not self.reason:
            raise DataError(f"status is {self.status} without a reason; say why the run ended.")

    def write(self, run_dir: Path) -> Path:
        """Write summary.json into the run folder, replacing an older one; its path."""
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / FILE_NAME
        partial = run_dir / f"{FILE_NAME}.partial"
        with partial.open("w", encoding="ascii") as file:
            file.write(json.dumps(encode(asdict(self)), indent=2, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        return path

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """The summary of a run folder.

        Raises DataError where it is missing, unreadable or lacks a field.
        """
        path = run_dir / FILE_NAME
        if not path.exists():
            raise DataError(f"{path} doesn't exist; the run is still going on or was killed.")
        found = loads(path.read_bytes())
        names = {each.name for each in fields(cls)}
        if not isinstance(found, dict) or not names >= found.keys():
            raise DataError(f"{path} isn't a summary; it must be an object of {sorted(names)}.")
        try:
            return cls(**cast("dict[str, object]", found))  # pyright: ignore[reportArgumentType]
        except TypeError as error:
            raise DataError(f"{path} lacks a field: {error}.") from error
