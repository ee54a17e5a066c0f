"""`parity sft RECIPE [KEY=VALUE]...`: a supervised run on a task source's own answers."""

from pathlib import Path

from parity.cli.arguments import OverridesArgument, RecipeArgument
from parity.cli.failures import keep_crashes_in
from parity.models import heavy

EPILOG = """\b
Examples:
  parity sft sft_quickstart
  parity sft sft_quickstart steps=200 tiny_model.num_layers=2
"""


def sft(recipe: RecipeArgument, overrides: OverridesArgument = None) -> int:
    """Fine-tune a model on given answers."""
    from parity.config.arithmetic import check
    from parity.config.compose import load_sft

    config = load_sft(recipe, overrides or ())
    check(config)
    keep_crashes_in(Path(config.output.dir))
    with heavy.imports():
        from parity.sft.command import sft as run

    return run(config, recipe=recipe)
