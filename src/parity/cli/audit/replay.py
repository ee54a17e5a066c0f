"""`parity replay RUN`: compute recorded steps again and compare every number and weight."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from parity.cli.arguments import RunArgument, RunsDirOption
from parity.cli.failures import DONE, FAILED

if TYPE_CHECKING:
    from parity.replay.replay import Replay

EPILOG = """\b
Examples:
  parity replay latest
  parity replay quickstart-2026 --from 100 --until 120
  parity replay latest --json

\b
The recorded groups go to a trainer again; nothing is generated and nothing of the run is
changed. Exit code 0: loss, gradient norm and weights are equal, bit for bit; 1: they aren't.
"""


def replay(
    run: RunArgument = "latest",
    first: Annotated[
        int | None, typer.Option("--from", min=1, help="First step; begins at a checkpoint.")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--until", min=1, help="Last step [default: the run's].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    runs_dir: RunsDirOption = None,
) -> int:
    """Train the recorded groups again and compare losses and weights."""
    from parity.cli import locate

    folder = locate.find_run(run, locate.runs_dir(runs_dir))
    from parity.replay.replay import replay as compute

    found = compute(folder, first=first, last=last)
    if as_json:
        typer.echo(json.dumps({"equal": found.is_equal, **asdict(found)}))
    else:
        typer.echo("\n".join([folder.name, *as_lines(found)]))
    return DONE if found.is_equal else FAILED


def as_lines(found: "Replay") -> list[str]:
    """What was computed, then the verdict and where it breaks."""
    lines = [_computed(found)]
    if found.fault is not None:
        lines.append(f"DAMAGED  {found.fault}")
    if found.number is not None:
        broken = found.number
        lines.append(f"DIFFERS  at step {broken.step}: {broken.what} is {broken.says}")
    if found.tensor is not None:
        broken = found.tensor
        lines.append(f"DIFFERS  after step {broken.step}: tensor {broken.what}, {broken.says}")
    if found.is_equal:
        lines.append(
            f"equal    loss, gradient norm and the other numbers of {found.num_steps} steps"
        )
        weights = ", ".join(found.compared) or "no weights: none are kept within these steps"
        lines.append(f"equal    {found.num_tensors} tensors: {weights}")
    elif found.tensor is None and found.num_tensors:
        lines.append(f"equal    {found.num_tensors} tensors: {', '.join(found.compared)}")
    elif found.num_steps == found.num_tensors == 0 and found.fault is None:
        lines.append("nothing could be compared: no metrics.jsonl and no weights for these steps")
    if found.num_unrecorded:
        lines.append(f"note: {found.num_unrecorded} steps have no line in metrics.jsonl")
    return lines + [f"note: {note}" for note in found.notes]


def _computed(found: "Replay") -> str:
    """Which steps were computed; fewer than were asked for where it broke off."""
    if found.reached is None:
        return f"no step of {found.first} to {found.last} computed again from {found.begins}"
    asked = "" if found.reached == found.last else f" (of {found.first} to {found.last})"
    return f"steps {found.first} to {found.reached}{asked} computed again from {found.begins}"
