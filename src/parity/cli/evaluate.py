"""`parity eval RUN_OR_MODEL [KEY=VALUE]...`: accuracy on held-out tasks, without training."""

from typing import Annotated

import typer

from parity.cli import completion
from parity.cli.arguments import OverridesArgument
from parity.errors import ConfigError
from parity.models import heavy

EPILOG = """\b
Examples:
  parity eval latest                                  a run's model on its own held-out tasks
  parity eval latest --samples 16 --temperature 1     pass@1 to pass@16
  parity eval ./my-model --recipe quickstart --tasks 500
  parity eval parity://quickstart --recipe quickstart -k 1,4,8 --samples 8 --temperature 1
"""


def evaluate(
    run_or_model: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run, or a model (folder, hub name or parity://NAME; needs --recipe).",
            autocompletion=completion.runs,
        ),
    ],
    overrides: OverridesArgument = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Where tasks and reward come from.", autocompletion=completion.recipes),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Answers per task.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Number of tasks.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy.")] = None,
    k: Annotated[
        str | None, typer.Option("-k", "--k", help="The k of pass@k, as in 1,4,16.")
    ] = None,
) -> int:
    """Measure accuracy and pass@k on held-out tasks."""
    from parity.cli import locate

    numbers = parse_k(k, samples)
    subject = locate.run_or_model(run_or_model, locate.runs_dir(None))
    with heavy.imports():
        from parity.measure import evaluate as measure

    return measure(
        subject,
        recipe=recipe,
        overrides=overrides or (),
        samples=samples,
        tasks=tasks,
        temperature=temperature,
        k=numbers,
    )


def parse_k(text: str | None, samples: int | None) -> tuple[int, ...]:
    """The numbers of `--k 1,4,16`, rising and unique; empty where none were given."""
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise ConfigError(f"--k is {text!r}; it must be numbers >= 1, as in --k 1,4,16.")
    numbers = tuple(sorted({int(word) for word in words}))
    if samples is not None and numbers[-1] > samples:
        raise ConfigError(
            f"--k has {numbers[-1]}, and pass@k needs that many answers per task;"
            f" set --samples {numbers[-1]} or more (it is {samples})."
        )
    return numbers
