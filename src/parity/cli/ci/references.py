"""`parity ci references`: which image tag and which commits of dependencies a run uses.

Called by the plan job of a rendered workflow. The pull request's text comes in by a variable and
is only parsed. Invariant: what is printed was checked, and each commit is a full one.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

EPILOG = """\b
Examples:
  parity ci references --backend NAME     what lock file and ci.toml say
  CI_BODY='ci-engine: #12' parity ci references --backend NAME
"""


def references(
    backend: Annotated[str, typer.Option("--backend", help="The lane's backend.")],
    root: Annotated[Path, typer.Option("--root", help="Repository with the ci.toml.")] = Path(),
    body: Annotated[
        str, typer.Option(envvar="CI_BODY", help="Text of the pull request; lines `key: value`.")
    ] = "",
    inputs: Annotated[
        str, typer.Option(envvar="CI_INPUTS", help="Inputs of a dispatched run, as a JSON object.")
    ] = "{}",
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Append image_tag= and references= to this file."),
    ] = None,
) -> int:
    """Find image tag and dependency commits, each with where it was said."""
    from parity.ci.loading import load_config
    from parity.ci.workflow.references import IMAGE, choose

    found = choose(load_config(root), backend=backend, inputs=inputs, body=body)
    for name, reference in found.items():
        typer.echo(f"{name} = {reference.value}  (from: {reference.source})")
    if not found:
        typer.echo("Nothing is named; image and dependencies stay as ci.toml and the image say.")
    if output is not None:
        commits = {name: each.value for name, each in found.items() if name != IMAGE}
        tag = found[IMAGE].value if IMAGE in found else ""
        with output.open("a", encoding="utf-8") as file:
            file.write(f"image_tag={tag}\nreferences={json.dumps(commits)}\n")
    return 0
