"""`parity config RECIPE [KEY=VALUE]...`: the resolved configuration, and what follows from it.

What is printed to a pipe is a complete recipe file: the derived numbers are comments in it.
"""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from parity.cli.arguments import OverridesArgument, RecipeArgument

EPILOG = """\b
Examples:
  parity config quickstart
  parity config quickstart rollouts.max_lag=0.5 rollouts.groups_per_step=64
  parity config quickstart > mine.yaml    a recipe of your own, with every key
  parity config quickstart --json
"""


def config(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> int:
    """Print a recipe with every key, and check it."""
    from parity.cli.derived import as_lines
    from parity.config.arithmetic import check, derive, derive_sft
    from parity.config.compose import load
    from parity.config.environment import omp_threads
    from parity.config.saved import to_recipe, to_yaml
    from parity.config.schema import TrainConfig
    from parity.config.threads import available_cores

    resolved = load(recipe, overrides or ())
    if not as_json:
        typer.echo(f"# {recipe} {' '.join(overrides or ())}".rstrip())
        typer.echo(to_yaml(resolved), nl=False)
    check(resolved)
    cores, environment = available_cores(), omp_threads()
    if isinstance(resolved, TrainConfig):
        derived = derive(resolved, cores=cores, environment=environment)
    else:
        derived = derive_sft(resolved, cores=cores, environment=environment)
    if as_json:
        typer.echo(
            json.dumps({"config": to_recipe(resolved), "derived": asdict(derived)}, indent=2)
        )
    else:
        typer.echo("\n".join(f"# {line}".rstrip() for line in as_lines(derived)))
    return 0
