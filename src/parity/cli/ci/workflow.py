"""`parity ci workflow`: renders the workflow files of all lanes from `ci.toml`.

Invariant: `--check` writes nothing and fails when a committed file isn't as `ci.toml` says.
"""

from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  parity ci workflow                      write .github/workflows/ci-*.yml
  parity ci workflow --check              fail when one of them is stale
"""
STALE = 1


def workflow(
    root: Annotated[
        Path, typer.Option("--root", help="Repository with the ci.toml.", show_default=False)
    ] = Path(),
    check: Annotated[bool, typer.Option("--check", help="Compare, and write nothing.")] = False,
) -> int:
    """Render the workflows of every lane, or check that they are current."""
    from parity.ci.loading import load_config
    from parity.ci.workflow import files

    config = load_config(root)
    if check:
        wrong = files.stale(config)
        for line in wrong:
            typer.echo(line, err=True)
        if wrong:
            typer.echo("Run `parity ci workflow` and commit what it writes.", err=True)
            return STALE
        typer.echo("The workflows are as ci.toml says.")
        return 0
    for line in files.write(config) or ["The workflows are as ci.toml says."]:
        typer.echo(line)
    for line in files.warnings(config):
        typer.echo(f"warning: {line}", err=True)
    return 0
