"""The arguments that several commands share, each with its help and shell completion."""

from typing import Annotated

import typer

from parity.cli import completion

RecipeArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A packaged recipe, or the path of your own YAML file.",
        autocompletion=completion.recipes,
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Any key of the configuration, as in optimizer.lr=1e-5.",
        autocompletion=completion.overrides,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: name, unique beginning of a name, folder, or `latest`.",
        autocompletion=completion.runs,
    ),
]
RunsDirOption = Annotated[
    str | None,
    typer.Option("--dir", help="Folder of the runs [default: $PARITY_RUNS_DIR or runs]."),
]
