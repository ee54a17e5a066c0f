"""`parity launch slurm RECIPE [KEY=VALUE]...`: an sbatch script for a run on several nodes."""

from pathlib import Path
from typing import Annotated

import typer

from parity.cli.arguments import OverridesArgument, RecipeArgument
from parity.cli.launch.writing import CpusOption, MemoryOption, OutputOption, write

EPILOG = """\b
Examples:
  parity launch slurm quickstart runtime=ray platform=cpu
  parity launch slurm quickstart runtime=ray platform=cpu placement.nodes=2 --sbatch time=8:00:00
  parity launch slurm quickstart runtime=ray platform=cpu --requeue -o quickstart.sbatch

\b
Nodes, processes and devices follow from `placement`; `sbatch FILE` starts the job.
"""


def slurm(  # noqa: PLR0913 (the options of the command)
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of sbatch; may be repeated."),
    ] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINE",
            help="Shell before the start, as in `source venv/bin/activate`; may be repeated"
            " [default: the programs of this Python on PATH].",
        ),
    ] = None,
    cpus: CpusOption = None,
    memory_gib: MemoryOption = None,
    grace_s: Annotated[
        int, typer.Option(min=10, help="The job is told to stop so long before its time is up.")
    ] = 300,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Queue the job again when it was told to stop.")
    ] = False,
    interface: Annotated[
        str, typer.Option(help="Network of the head's address, as in ib0 [default: the host's].")
    ] = "",
    temp_dir: Annotated[str, typer.Option(help="Short folder of each node for Ray.")] = "/tmp",
    output: OutputOption = None,
) -> int:
    """Print an sbatch script that brings up Ray and trains."""
    from parity.cluster.shape import shape_of
    from parity.cluster.slurm import SlurmOptions, script
    from parity.config.arithmetic import check
    from parity.config.compose import load_train

    config = load_train(recipe, overrides or ())
    check(config)
    text = script(
        config,
        shape_of(config, cpus=cpus, memory_gib=memory_gib),
        recipe=recipe,
        overrides=overrides or (),
        options=SlurmOptions(
            sbatch=sbatch or (),
            setup=setup or (),
            grace_s=grace_s,
            requeue=requeue,
            interface=interface,
            temp_dir=temp_dir,
        ),
        work_dir=Path.cwd(),
    )
    write(text, output)
    return 0
