"""`parity ci dependencies`: moves the dependencies of an image to commits and patches them.

Called inside the container of a job, after the approval, with what `parity ci references` found.
Invariant: a patch that is neither applicable nor present ends the job.
"""

from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  parity ci dependencies '{}'             only check and apply the declared patches
  parity ci dependencies '{"engine": "<commit of 40 digits>"}'
"""


def dependencies(
    commits: Annotated[str, typer.Argument(help="JSON object: name -> full commit.")],
    root: Annotated[Path, typer.Option("--root", help="Repository with the ci.toml.")] = Path(),
) -> int:
    """Check out the given commits of dependencies and apply the declared patches."""
    from parity.ci.loading import load_config
    from parity.ci.workflow.references import read_texts
    from parity.ci.workflow.settings import read_dependencies
    from parity.ci.workflow.sources import apply_dependencies

    config = load_config(root)
    wanted = read_texts(commits, place="the commits of dependencies")
    for each in apply_dependencies(read_dependencies(config), wanted, root=config.root):
        moved = "moved to" if each.moved else "stays at"
        typer.echo(f"{each.name} {moved} {each.commit}")
        for patch, state in each.patches.items():
            typer.echo(f"  {patch}: {state}")
    return 0
