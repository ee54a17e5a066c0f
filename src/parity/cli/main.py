"""`parity`: the entry point, which names the commands and guards them.

Importing this module costs no torch, Hydra or Rich, so that `--help` and completion answer at
once: every command imports what it needs when it runs. Invariant: `main` returns the exit code
of `failures.py` for every way a command can end.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from parity import __version__
from parity.cli import ci, config, doctor, evaluate, launch, resume, runs, sft, show, train
from parity.cli.audit import audit, diff, replay
from parity.cli.failures import guarded, tells_interrupts

EPILOG = """\b
Examples:
  parity train quickstart                 train the model that ships with Parity
  parity train quickstart steps=20        change any key of the recipe
  parity config quickstart                print every key and what follows from them
  parity train finetune model.path=./my-model tasks.path=tasks.jsonl
  parity show latest                      the learning curve of the newest run

\b
Exit code: 0 done; 1 the run failed; 2 what was given can't be used (command line, run file,
data, reward), and nothing was trained; 3 nothing to do; 70 a bug of Parity; 130 interrupted.
"""

app = typer.Typer(
    name="parity",
    add_completion=True,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(epilog=EPILOG)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Post-train language models with reinforcement learning, the same way everywhere."""
    if version:
        typer.echo(f"parity {__version__}")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(0)


app.command("train", epilog=train.EPILOG)(tells_interrupts(train.train))
app.command("sft", epilog=sft.EPILOG)(tells_interrupts(sft.sft))
app.command("eval", epilog=evaluate.EPILOG)(tells_interrupts(evaluate.evaluate))
app.command("resume", epilog=resume.EPILOG)(tells_interrupts(resume.resume))
app.command("runs", epilog=runs.EPILOG)(tells_interrupts(runs.runs))
app.command("show", epilog=show.EPILOG)(tells_interrupts(show.show))
app.command("doctor", epilog=doctor.EPILOG)(tells_interrupts(doctor.doctor))
app.command("config", epilog=config.EPILOG)(tells_interrupts(config.config))
app.command("audit", epilog=audit.EPILOG)(tells_interrupts(audit.audit))
app.command("diff", epilog=diff.EPILOG)(tells_interrupts(diff.diff))
app.command("replay", epilog=replay.EPILOG)(tells_interrupts(replay.replay))
app.add_typer(launch.app, name="launch")
app.add_typer(ci.app, name="ci")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (None: this process's own) and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: app(args=words, prog_name="parity", standalone_mode=False))


if __name__ == "__main__":
    sys.exit(main())
