"""Shell completion: recipe names, run names, override keys and their closed sets of values.

Invariant: completion never fails aloud; where nothing fits, it offers nothing.
"""

from typing import Literal, get_args, get_origin

import typer

from parity.errors import ParityError

Choices = list[tuple[str, str]]


def recipes(incomplete: str) -> Choices:
    """Packaged recipes, with what their first line says up to a colon."""
    from parity.config import recipes as packaged

    names = [name for name in packaged.names() if name.startswith(incomplete)]
    return [(name, packaged.read(name).description.partition(":")[0]) for name in names]


def runs(incomplete: str) -> Choices:
    """Run folders, newest first."""
    from parity.cli.locate import list_runs, runs_dir

    found = [(run.name, "") for run in list_runs(runs_dir(None))]
    return [choice for choice in [*found, ("latest", "")] if choice[0].startswith(incomplete)]


def overrides(context: typer.Context, incomplete: str) -> Choices:
    """`key=` for every key of the recipe's schema; `key=value` where the values are few."""
    from parity.config import keys
    from parity.config.schema import SftConfig, TrainConfig

    schema = SftConfig if _is_sft(context) else TrainConfig
    choices: Choices = []
    for key in keys.leaves(schema):
        if incomplete.startswith(f"{key.path}="):
            choices += [(f"{key.path}={value}", "") for value in _values(key.annotation)]
        elif key.path.startswith(incomplete):
            owner = f"with {key.path.split('.')[0]}.name={' or '.join(key.owners)}"
            choices.append((f"{key.path}=", owner if key.owners else ""))
    return [choice for choice in choices if choice[0].startswith(incomplete)]


def _values(annotation: object) -> list[str]:
    """The words that a key may take, where they are few."""
    from parity.config import keys

    words: list[str] = []
    for member in keys.members(annotation):
        if get_origin(member) is Literal:
            words += [str(word) for word in get_args(member)]
        elif member is bool:
            words += ["true", "false"]
    return words + (["null"] if words and keys.accepts_none(annotation) else [])


def _is_sft(context: typer.Context) -> bool:
    """Whether the command line is about an SFT recipe."""
    from parity.config import recipes as packaged

    if context.info_name == "sft":
        return True
    try:
        return packaged.read(str(context.params.get("recipe"))).body.get("kind") == "sft"
    except ParityError:
        return False
