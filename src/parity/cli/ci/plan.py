"""`parity ci plan`: what an event runs where, and the reason for each test that doesn't run."""

import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from parity.ci.model import Event
from parity.ci.plan.planning import Request
from parity.ci.policy.changes import Changes, read_changes
from parity.ci.policy.select import Asked
from parity.cli.ci import arguments
from parity.cli.ci.arguments import (
    BackendOption,
    CadenceOption,
    EventOption,
    FileOption,
    JsonOption,
    LabelsOption,
    MatchAllOption,
    RootOption,
    ScheduleOption,
    SuiteOption,
    TodayOption,
)

EPILOG = """\b
Examples:
  parity ci plan --event pull_request --labels run-ci-short
  git diff --name-status -z -M HEAD^1 HEAD | parity ci plan --changed -
  parity ci plan --file tests/hardware/test_step.py        one-file rerun
  parity ci plan --suite mi300-4 --shard-count 3 --json
"""


def plan(  # noqa: PLR0913 each is an option of the command line
    root: RootOption = Path(),
    event: EventOption = None,
    schedule: ScheduleOption = None,
    cadence: CadenceOption = None,
    labels: LabelsOption = None,
    match_all: MatchAllOption = False,
    backend: BackendOption = None,
    suite: SuiteOption = None,
    file: FileOption = None,
    changed: Annotated[
        str | None,
        typer.Option(
            "--changed",
            metavar="PATH",
            help="Output of git diff --name-status -z -M, or - for the standard input.",
        ),
    ] = None,
    shard_count: Annotated[
        int | None, typer.Option("--shard-count", help="Shards of --suite, instead of ci.toml's.")
    ] = None,
    today: TodayOption = None,
    as_json: JsonOption = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Append what later jobs ask (name=value) to this file."),
    ] = None,
) -> int:
    """Plan what an event runs on which shard, and say why the rest doesn't run."""
    files = [arguments.relative(each, root) for each in file] if file else None

    def request(first_event: str) -> Request:
        words = arguments.labels(labels)
        return Request(
            event=Event(event or first_event, schedule or None, words, cadence or None),
            match_all=match_all,
            asked=Asked(backend, suite, files),
            changes=None if changed is None else _changes(changed),
            shard_count=shard_count,
        )

    return _tell(request, root, arguments.day(today), as_json=as_json, output=output)


def _tell(
    request: Callable[[str], Request],
    root: Path,
    today: date,
    *,
    as_json: bool,
    output: Path | None,
) -> int:
    """Make the plan and print it, its warnings apart."""
    from parity.ci.loading import load_config
    from parity.ci.patches.declared import active
    from parity.ci.plan.encode import as_text, job_outputs, to_json
    from parity.ci.plan.planning import make_plan
    from parity.ci.registry.discovery import collect

    config = load_config(root)
    wanted = request(next(iter(config.events)))
    made = make_plan(wanted, config, collect(config, today), active(config, wanted.asked.backend))
    typer.echo(to_json(made, config) if as_json else as_text(made, config), nl=False)
    for warning in made.warnings:
        typer.echo(f"parity: warning: {warning}", err=True)
    if output is not None:
        with output.open("a", encoding="utf-8") as lines:
            lines.writelines(
                f"{name}={value}\n" for name, value in job_outputs(made, config).items()
            )
    return 0


def _changes(place: str) -> Changes:
    """The changed paths of a file or the standard input; unknown where it can't be read."""
    try:
        data = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
    except OSError as error:
        return Changes(None, f"{place} can't be read ({error})")
    return read_changes(data.decode("utf-8", errors="surrogateescape"))
