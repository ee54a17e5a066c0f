"""The options that several `parity ci` commands share, and what they mean together."""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, cast

import typer

from parity.errors import ConfigError

RootOption = Annotated[Path, typer.Option("--root", help="Repository with ci.toml at its root.")]
EventOption = Annotated[
    str | None,
    typer.Option("--event", help="What started CI [default: the first event of ci.toml]."),
]
ScheduleOption = Annotated[
    str | None, typer.Option("--schedule", metavar="CRON", help="The cron line that fired.")
]
CadenceOption = Annotated[
    str | None, typer.Option("--cadence", help="The cadence, whatever event and labels say.")
]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--labels", help="A label of the pull request, or all as a JSON list; repeat."),
]
MatchAllOption = Annotated[
    bool, typer.Option("--match-all", help="Count every label as asked for by name.")
]
BackendOption = Annotated[str | None, typer.Option("--backend", help="Only this backend.")]
SuiteOption = Annotated[str | None, typer.Option("--suite", help="Only this suite.")]
FileOption = Annotated[
    list[str] | None,
    typer.Option("--file", help="Only this test, whatever its labels and cadence; repeat."),
]
TodayOption = Annotated[
    str | None, typer.Option("--today", metavar="DAY", help="Judge expiry dates on this day.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def labels(words: Sequence[str] | None) -> tuple[str, ...]:
    """The labels of all `--labels`; a word in brackets is a JSON list, `null` and "" are none."""
    found: list[str] = []
    for word in words or ():
        if word.strip() in ("", "null"):
            continue
        if not word.lstrip().startswith("["):
            found.append(word)
            continue
        try:
            items: object = json.loads(word)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--labels {word[:200]!r} isn't a JSON list ({error}).") from error
        wrong = [each for each in cast("list[object]", items) if not isinstance(each, str)]
        if wrong:
            raise ConfigError(f"--labels holds {wrong[0]!r}; every label must be a string.")
        found.extend(cast("list[str]", items))
    return tuple(dict.fromkeys(found))


def day(text: str | None) -> date:
    """The day of `--today`, else today (UTC)."""
    if text is None:
        return datetime.now(UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--today {text!r} is no day; write it as 2026-12-31.") from error


def relative(path: str, root: Path) -> str:
    """A `--file` as the inventory names it: relative to the root, with `/`."""
    root = root.resolve()
    for place in (Path(path), root / path):
        absolute = place if place.is_absolute() else Path.cwd() / place
        if absolute.exists() and absolute.resolve().is_relative_to(root):
            if absolute.is_symlink():
                raise ConfigError(f"--file {path} is a symbolic link; name the file itself.")
            return absolute.resolve().relative_to(root).as_posix()
    return path.replace("\\", "/")
