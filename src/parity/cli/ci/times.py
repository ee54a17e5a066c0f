"""`parity ci audit-times`: estimates against measured times, with better literals."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from parity.cli.ci.arguments import JsonOption, RootOption, TodayOption

EPILOG = """\b
Examples:
  parity ci audit-times results/           every results.json below the folder
  parity ci audit-times times.jsonl --write

\b
Exit code: 0 every measured estimate holds (or was rewritten), 1 some don't.
"""


def audit_times(
    places: Annotated[
        list[Path], typer.Argument(metavar="PLACE", help="results.json, .jsonl, or a folder.")
    ],
    root: RootOption = Path(),
    write: Annotated[bool, typer.Option("--write", help="Rewrite the literals.")] = False,
    today: TodayOption = None,
    as_json: JsonOption = False,
) -> int:
    """Propose new est_time literals where measured times differ."""
    from parity.ci.loading import load_config
    from parity.ci.partition.estimates import audit, placeholder_warnings
    from parity.ci.partition.measured import read_measured
    from parity.ci.partition.rewrite import rewrite
    from parity.ci.registry.discovery import collect
    from parity.cli.ci import arguments

    config = load_config(root)
    inventory = collect(config, arguments.day(today))
    found = audit(inventory.registrations, read_measured(places))
    written = rewrite(config.root, found.proposals) if write else []
    for each in found.proposals:
        row = {**asdict(each.registration), "median_s": each.median_s, "runs": each.num_runs}
        row |= {"proposed_s": each.est_time_s, "disabled": each.registration.disabled is not None}
        typer.echo(json.dumps(row) if as_json else each.text)
    if not as_json:
        unmeasured = len(found.unmeasured)
        typer.echo(
            f"{found.num_checked} estimates checked, {len(found.proposals)} are off,"
            f" {unmeasured} never measured, {len(written)} files rewritten"
        )
    for name in found.strangers:
        typer.echo(f"parity: warning: times of {name}, which isn't registered", err=True)
    for warning in placeholder_warnings(inventory.registrations):
        typer.echo(f"parity: warning: {warning}", err=True)
    return 1 if found.proposals and not write else 0
