"""`parity ci`: the table of its commands, each imported only when it runs or is explained.

To add one: a module here with a function that returns the exit code, and a line in COMMANDS.
"""

from importlib import import_module

import typer
from typer.core import TyperCommand, TyperGroup

from parity.cli.failures import tells_interrupts

# name -> "module:function"; the module may have an EPILOG.
COMMANDS = {
    "plan": "parity.cli.ci.plan:plan",
    "run": "parity.cli.ci.run:run",
    "probe": "parity.cli.ci.probe:probe",
    "gate": "parity.cli.ci.gate:gate",
    "list": "parity.cli.ci.listing:listing",
    "audit-times": "parity.cli.ci.times:audit_times",
    "docs": "parity.cli.ci.docs:docs",
    "workflow": "parity.cli.ci.workflow:workflow",
    "references": "parity.cli.ci.references:references",
    "dependencies": "parity.cli.ci.dependencies:dependencies",
}
EPILOG = """\b
Examples:
  parity ci plan                          what a pull request would run, and why not the rest
  parity ci plan --event schedule --schedule "0 15 * * 6" --json
  parity ci list --backend cpu            every registered test
  parity ci audit-times results/          better estimates from measured times

\b
The repository is described by ci.toml at its root; see docs/hardware-ci.md.
"""


class LazyGroup(TyperGroup):
    """A group whose commands are those of COMMANDS."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The names, in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> TyperCommand | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Import the module of one command; None for an unknown name."""
        del ctx
        return None if cmd_name not in COMMANDS else _command(cmd_name)


def _command(name: str) -> TyperCommand:
    module_name, _, function_name = COMMANDS[name].partition(":")
    module = import_module(module_name)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(
        name,
        epilog=module.EPILOG if "EPILOG" in vars(module) else None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )(tells_interrupts(vars(module)[function_name]))
    command = typer.main.get_command(single)
    assert isinstance(command, TyperCommand), f"{name} is a group"
    return command


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(epilog=EPILOG)
def ci() -> None:
    """Hardware CI: plan, run and gate registered tests on scarce machines."""
