"""`parity train RECIPE [KEY=VALUE]...`: a reinforcement-learning run."""

from pathlib import Path

from parity.cli.arguments import OverridesArgument, RecipeArgument
from parity.cli.failures import keep_crashes_in
from parity.models import heavy

EPILOG = """\b
Examples:
  parity train quickstart
  parity train quickstart rollouts.max_lag=0 steps=20 output.name=sync-1
  parity train finetune model.path=./my-model tasks.path=tasks.jsonl reward.name=numeric
  parity train ./mine.yaml                where mine.yaml says `defaults: [quickstart]`

The exit code is 0 only where the whole run succeeded.
"""


def train(recipe: RecipeArgument, overrides: OverridesArgument = None) -> int:
    """Train a model with reinforcement learning."""
    from parity.config.arithmetic import check
    from parity.config.compose import load_train

    config = load_train(recipe, overrides or ())
    check(config)
    keep_crashes_in(Path(config.output.dir))
    with heavy.imports():
        from parity.launch import train as run

    return run(config, recipe=recipe)
