"""`parity ci docs`: writes the tables of a documentation page from ci.toml, or checks them."""

from pathlib import Path
from typing import Annotated

import typer

from parity.cli.ci.arguments import RootOption

EPILOG = """\b
Examples:
  parity ci docs docs/hardware-ci.md
  parity ci docs docs/hardware-ci.md --check      exit code 1 where a table is stale
"""


def docs(
    page: Annotated[Path, typer.Argument(metavar="PAGE", help="A Markdown page with marks.")],
    root: RootOption = Path(),
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if stale.")] = False,
) -> int:
    """Write the tables of suites, labels, cadences, scopes and events into a page."""
    from parity.ci.docs import with_tables
    from parity.ci.loading import load_config
    from parity.errors import ConfigError

    config = load_config(root)
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{page} can't be read ({error}).") from error
    current = with_tables(text, config, name=str(page))
    if current == text:
        typer.echo(f"{page} is current.")
        return 0
    if check:
        typer.echo(f"parity: {page} is stale; run `parity ci docs {page}`.", err=True)
        return 1
    page.write_text(current, encoding="utf-8")
    typer.echo(f"{page} is written.")
    return 0
