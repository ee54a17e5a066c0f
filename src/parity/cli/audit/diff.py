"""`parity diff RUN_A RUN_B`: the first event at which two runs differ, both sides of it."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from parity.cli import completion
from parity.cli.arguments import RunsDirOption
from parity.cli.failures import DONE, FAILED

if TYPE_CHECKING:
    from parity.ledger.diff import Comparison

EPILOG = """\b
Examples:
  parity diff run-a run-b
  parity diff run-a run-b --json

\b
Exit code 0: the runs are equal, token for token; 1: they differ. Times, checkpoints and the
order in which answers arrived aren't compared.
"""
RUN_HELP = "A run: name, unique beginning of a name, folder, or `latest`."


def diff(
    run_a: Annotated[
        str, typer.Argument(metavar="RUN_A", help=RUN_HELP, autocompletion=completion.runs)
    ],
    run_b: Annotated[
        str, typer.Argument(metavar="RUN_B", help=RUN_HELP, autocompletion=completion.runs)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    runs_dir: RunsDirOption = None,
) -> int:
    """Find the first event at which two runs differ."""
    from parity.cli import locate
    from parity.ledger.diff import compare
    from parity.ledger.schema import ledger_dir

    parent = locate.runs_dir(runs_dir)
    folders = [locate.find_run(run, parent) for run in (run_a, run_b)]
    found = compare(*(ledger_dir(folder.path) for folder in folders))
    if as_json:
        typer.echo(json.dumps({"equal": found.first is None, **asdict(found)}))
    else:
        typer.echo("\n".join(as_lines(found, folders[0].name, folders[1].name)))
    return DONE if found.first is None else FAILED


def as_lines(found: "Comparison", name_a: str, name_b: str) -> list[str]:
    """The verdict, then a line per field that differs."""
    first = found.first
    if first is None:
        return [f"equal: {found.num_compared} events of {name_a} and {name_b} are the same"]
    lines = [
        f"{found.num_different} of {found.num_compared} events differ; the first is {first.title}"
    ]
    if first.left is None or first.right is None:
        has, lacks = (name_b, name_a) if first.left is None else (name_a, name_b)
        return [*lines, f"  {has} has it: {first.left or first.right}", f"  {lacks} doesn't"]
    for field, value in first.left.items():
        if value != first.right[field]:
            lines += [f"  {field}", f"    A {value}", f"    B {first.right[field]}"]
    if len(first.details) == 2:
        return [*lines, f"  A {first.details[0]}", f"  B {first.details[1]}"]
    return lines + [f"  {line}" for line in first.details]
