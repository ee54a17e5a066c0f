"""Finds recipes: YAML files that ship in `parity.recipes`, or the user's own.

A recipe is a name (`quickstart`) or the path of a YAML file (anything that ends in `.yaml` or
has a slash). Its `kind` tells `parity train` recipes from `parity sft` recipes. Used by
`compose.py` and by shell completion; needs neither Hydra nor torch. Invariant: a name always
means the packaged recipe, whatever the working directory holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

import yaml

from parity.config.dialect import Loader
from parity.errors import ConfigError
from parity.registry import known

PACKAGE = "parity.recipes"
Kind = Literal["train", "sft"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as it stands in its own file, without what `defaults` brings in."""

    name: str
    path: Path | None  # None: packaged
    text: str
    body: Mapping[str, object]

    @property
    def description(self) -> str:
        """The first comment line."""
        first = self.text.partition("\n")[0]
        return first.lstrip("# ").rstrip() if first.startswith("#") else ""


def names() -> list[str]:
    """The packaged recipes, sorted."""
    files = resources.files(PACKAGE).iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def is_path(recipe: str) -> bool:
    """Whether the word on the command line is the path of a file, not a name."""
    return recipe.endswith((".yaml", ".yml")) or "/" in recipe or "\\" in recipe


def read(recipe: str) -> Recipe:
    """The recipe of that name or path; raises ConfigError where there is none."""
    if is_path(recipe):
        path = Path(recipe).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(
                f"recipe {recipe} doesn't exist (looked for {path});"
                f" give the path of a YAML file, or one of: {', '.join(names())}."
            )
        return Recipe(path.stem, path, *_parse(recipe, path.read_bytes()))
    if recipe not in names():
        here = Path(f"{recipe}.yaml")
        hint = f" Did you mean the file ./{here}?" if here.is_file() else ""
        raise ConfigError(f"there is no recipe {recipe!r}; {known(recipe, names())}{hint}")
    data = resources.files(PACKAGE).joinpath(f"{recipe}.yaml").read_bytes()
    return Recipe(recipe, None, *_parse(recipe, data))


def read_mapping(path: Path) -> dict[str, object]:
    """A YAML file whose top level is a mapping; raises ConfigError with the place otherwise."""
    return _parse(str(path), path.read_bytes())[1]


def _parse(shown: str, data: bytes) -> tuple[str, dict[str, object]]:
    try:
        text = data.decode("utf-8")
        body = yaml.load(text, Loader=Loader)  # a SafeLoader: plain values only
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{shown} isn't UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from error
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        place = f"{shown}:{mark.line + 1}" if mark is not None else shown
        problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
        raise ConfigError(f"{place} isn't valid YAML ({problem}); correct that line.") from error
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise ConfigError(
            f"{shown} holds a {type(body).__name__}; it must hold `key: value` lines."
        )
    return text, {str(key): value for key, value in body.items()}


def kind_of(plain: Mapping[str, object], shown: str) -> Kind | None:
    """What a composed recipe says it is for; None where it doesn't say."""
    value = plain.get("kind")
    if value is None:
        return None
    for kind in get_args(Kind):
        if value == kind:
            return kind
    raise ConfigError(f"kind is {value!r} in {shown}; it must be one of train, sft.")
