"""`parity runs`: the run folders, newest first, with what each came to.

Invariant: what isn't known is shown as `-`, and a run without a summary is never `finished`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from parity.cli.arguments import RunsDirOption

EPILOG = """\b
Examples:
  parity runs                             the runs in $PARITY_RUNS_DIR, or in ./runs
  parity runs --dir /data/runs --json

\b
Status: finished, failed or stopped, as summary.json says; or open: there is no summary, so the
run goes on or was killed, and `parity resume RUN` goes on with it.
"""
OPEN = "open"
UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run as it is listed; None where unknown."""

    name: str
    recipe: str
    status: str
    steps: int | None
    first_accuracy: float | None
    last_accuracy: float | None
    seconds: float | None


def runs(
    runs_dir: RunsDirOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> int:
    """List runs with status, accuracy and duration."""
    from parity.cli import locate

    parent = locate.runs_dir(runs_dir)
    lines = [read_run(folder.path) for folder in locate.list_runs(parent)]
    if as_json:
        for line in lines:
            typer.echo(json.dumps(asdict(line)))
    elif lines:
        typer.echo("\n".join(as_table(lines)))
    else:
        typer.echo(f"No runs in {parent.absolute()} yet; `parity train quickstart` makes one.")
    return 0


def read_run(path: Path) -> RunLine:
    """What is known of one run folder."""
    from parity.errors import ParityError
    from parity.folder import RunFolder
    from parity.observe.summary import FILE_NAME, Summary
    from parity.observe.trackers.jsonl import read_rows

    folder = RunFolder(path)
    try:
        recipe = folder.info().recipe
    except ParityError:
        recipe = UNKNOWN
    if (path / FILE_NAME).is_file():
        try:
            found = Summary.read(path)
        except ParityError:
            return RunLine(folder.name, recipe, "unreadable", None, None, None, None)
        return RunLine(
            name=folder.name,
            recipe=recipe,
            status=found.status,
            steps=found.steps,
            first_accuracy=found.eval_first,
            last_accuracy=found.eval_last,
            seconds=found.train_seconds,
        )
    rows = read_rows(folder.metrics_path) if folder.metrics_path.is_file() else []
    accuracies = [a for row in rows if (a := row.get("eval/accuracy")) is not None]
    steps = [int(step) for row in rows if (step := row.get("step")) is not None]
    return RunLine(
        name=folder.name,
        recipe=recipe,
        status=OPEN,
        steps=max(steps, default=None),
        first_accuracy=accuracies[0] if accuracies else None,
        last_accuracy=accuracies[-1] if accuracies else None,
        seconds=None,
    )


def as_table(lines: Sequence[RunLine]) -> list[str]:
    """The list as aligned text, with a heading."""
    heading = ("run", "recipe", "status", "steps", "accuracy", "time")
    cells = [heading, *(_cells(line) for line in lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]


def _cells(line: RunLine) -> tuple[str, ...]:
    ends = (line.first_accuracy, line.last_accuracy)
    accuracy = " -> ".join(UNKNOWN if end is None else f"{end:.3f}" for end in ends)
    steps = UNKNOWN if line.steps is None else str(line.steps)
    recipe = Path(line.recipe).name
    return line.name, recipe, line.status, steps, accuracy, _duration(line.seconds)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
