"""`parity audit RUN`: the proofs that a run's ledger gives, and the reason of every loss."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from parity.cli.arguments import RunArgument, RunsDirOption
from parity.cli.failures import DONE, FAILED

if TYPE_CHECKING:
    from parity.ledger.audit import Audit

EPILOG = """\b
Examples:
  parity audit latest
  parity audit quickstart-2026 --json

\b
Nothing is written; the run may go on meanwhile. Exit code 0: every proof holds; 1: one doesn't.
"""


def audit(
    run: RunArgument = "latest",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    runs_dir: RunsDirOption = None,
) -> int:
    """Prove that no task was lost, trained twice or trained too late."""
    from parity.cli import locate
    from parity.ledger import audit as auditing
    from parity.ledger.schema import ledger_dir

    folder = locate.find_run(run, locate.runs_dir(runs_dir))
    found = auditing.audit(ledger_dir(folder.path))
    if as_json:
        typer.echo(json.dumps(as_plain(found)))
    else:
        typer.echo("\n".join([folder.name, *as_lines(found)]))
    return DONE if found.holds else FAILED


def as_plain(found: "Audit") -> Mapping[str, object]:
    """For `--json`: what `as_lines` tells, with names."""
    counts = found.counts
    return asdict(found) | {
        "holds": found.holds,
        "proofs": [asdict(proof) | {"holds": proof.holds} for proof in found.proofs],
        "counts": None if counts is None else asdict(counts) | {"in_flight": counts.in_flight},
    }


def as_lines(found: "Audit") -> list[str]:
    """A line per proof, its findings below it, then losses and the place of the run."""
    from parity.ledger.audit import counted

    width = max(len(proof.name) for proof in found.proofs)
    lines: list[str] = []
    for proof in found.proofs:
        lines.append(f"  {'ok  ' if proof.holds else 'FAIL'}  {proof.name:<{width}}  {proof.says}")
        lines += [f"        - {fault}" for fault in proof.faults]
        if (more := proof.num_faults - len(proof.faults)) > 0:
            lines.append(f"        - and {more} more")
    if found.counts is None:
        return lines
    lines.append("losses: none" if not found.losses else "losses:")
    lines += [f"  {loss.number:>6}  {loss.what}: {loss.reason}" for loss in found.losses]
    committed = "none" if found.committed_step is None else f"step {found.committed_step}"
    lines.append(
        f"at step {found.steps or 0}, newest checkpoint {committed},"
        f" {counted(found.resumes or 0, 'resume')},"
        f" {counted(found.superseded_events or 0, 'superseded event')}"
    )
    return lines + [f"note: {note}" for note in found.notes]
