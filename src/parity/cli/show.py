"""`parity show RUN`: how a run ended and its learning curve, in the terminal and as a picture."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from parity.cli.arguments import RunArgument, RunsDirOption
from parity.errors import DataError

EPILOG = """\b
Examples:
  parity show latest
  parity show quickstart-2026 --metric train/entropy --metric rollout/lag_mean
  parity show latest --png curve.png
"""
DEFAULT_METRICS = ("eval/accuracy", "rollout/raw_reward", "train/loss")
NUM_DEFAULT = 2  # of the default metrics, those first that the run has
PNG_FILE = "curve.png"


def show(
    run: RunArgument = "latest",
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="What to draw; may be repeated.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Where the picture goes [default: curve.png in the run].")
    ] = None,
    runs_dir: RunsDirOption = None,
) -> int:
    """Draw the learning curve of a run."""
    from parity.cli import locate
    from parity.cli.runs import as_table, read_run
    from parity.observe.curve import draw, series, write_png
    from parity.observe.trackers.jsonl import read_rows

    folder = locate.find_run(run, locate.runs_dir(runs_dir))
    typer.echo("\n".join(as_table([read_run(folder.path)])))
    rows = read_rows(folder.metrics_path)
    recorded = sorted({name for row in rows for name in row if name != "step"})
    curves = {name: series(rows, name) for name in _chosen(metric, recorded, folder.name)}
    width = min(100, shutil.get_terminal_size().columns)
    is_ascii = not _can_print_braille()
    for name, points in curves.items():
        typer.echo("\n" + draw(points, title=name, width=width, is_ascii=is_ascii))
    place = write_png(png or folder.path / PNG_FILE, curves, title=folder.name)
    typer.echo(f"\n{place}")
    return 0


def _chosen(wanted: Sequence[str] | None, recorded: Sequence[str], run: str) -> list[str]:
    """The metrics to draw; a wanted one that the run didn't record is refused."""
    from parity.registry import known

    for name in wanted or ():
        if name not in recorded:
            raise DataError(f"{run} recorded no metric {name!r}; {known(name, recorded)}")
    found = list(wanted or [name for name in DEFAULT_METRICS if name in recorded][:NUM_DEFAULT])
    if not found:
        raise DataError(f"{run} recorded none of {', '.join(DEFAULT_METRICS)} yet; try later.")
    return found


def _can_print_braille() -> bool:
    try:
        "\u28ff".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
