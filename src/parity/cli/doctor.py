"""`parity doctor`: what Parity would do on this machine, why, and what is wrong with it."""

import json
from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  parity doctor                           the decision, its reasons, findings and limits
  parity doctor --json                    the same for programs; its `facts` can be given back
  parity doctor --facts facts.json        the decision for the machine that a file describes

\b
Exit status: 0 usable, 1 usable with warnings, 2 not usable. No device runtime is started.
"""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    facts: Annotated[
        Path | None,
        typer.Option(help="Decide from the facts in this JSON file instead of this machine's."),
    ] = None,
) -> int:
    """Examine platform, variables, libraries and limits; says what to do about each finding."""
    from parity.doctor.examine import examine
    from parity.doctor.show import as_lines
    from parity.platforms.facts import read_facts

    report = examine(None if facts is None else read_facts(facts))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, sort_keys=True))
    else:
        typer.echo("\n".join(as_lines(report)))
    return report.exit_status
