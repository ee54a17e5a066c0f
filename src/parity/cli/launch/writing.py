"""Where `parity launch` writes: standard output, or a file that isn't there yet."""

from pathlib import Path
from typing import Annotated

import typer

from parity.errors import ConfigError

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this new file [default: print].")
]
CpusOption = Annotated[
    int | None,
    typer.Option(min=1, help="CPUs of a node [default: its processes, driver and graders]."),
]
MemoryOption = Annotated[
    int | None,
    typer.Option(min=1, help="Memory of a node [default: placement.memory_gib_per_process]."),
]


def write(text: str, output: Path | None) -> None:
    """Print, or make the file; one that exists is refused, since it may have been edited."""
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{output} exists already; remove it, or give another name.") from None
    except OSError as error:
        raise ConfigError(
            f"{output} can't be written ({error.strerror}); give another --output."
        ) from error
