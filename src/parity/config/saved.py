"""The resolved configuration on disk: `config.yaml` in the run folder.

Written when a run starts, read by resume, eval and show. It holds every key, so it doesn't
change meaning when a default of a later Parity does. It is a recipe too, so `${` in a text (a chat
template, a pattern) is escaped as Hydra wants it. Invariant: `load_saved` gives back what `save`
wrote, and so does `compose.load`.
"""

import re
from collections.abc import Callable
from pathlib import Path

import yaml

from parity.config import recipes
from parity.config.dialect import Dumper
from parity.config.resolve import resolve, to_plain
from parity.config.schema import SftConfig, TrainConfig
from parity.errors import ConfigError
from parity.types import Json

HEADER = "# The resolved configuration of this run, every key included.\n"


def to_recipe(config: TrainConfig | SftConfig) -> dict[str, Json]:
    """The config as a recipe that says which kind it is."""
    return {"kind": "train" if isinstance(config, TrainConfig) else "sft", **to_plain(config)}


def _mapped(value: object, change: Callable[[str], str]) -> object:
    """`value` with `change` applied to every text in it, but not to keys."""
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _escape(text: str) -> str:
    """`${` becomes `\\${`, and backslashes in front of it are doubled."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def _unescape(text: str) -> str:
    return re.sub(r"(\\*)\$\{", lambda found: found[1][: len(found[1]) // 2] + "${", text)


def to_yaml(config: TrainConfig | SftConfig) -> str:
    """The config as a YAML recipe with every key."""
    plain = _mapped(to_recipe(config), _escape)
    return yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)


def save(config: TrainConfig | SftConfig, path: Path) -> None:
    """Write the config; the file appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(HEADER + to_yaml(config), encoding="utf-8")
    partial.replace(path)


def load_saved(path: Path) -> TrainConfig | SftConfig:
    """The config that `save` wrote; raises ConfigError where the file is missing or altered."""
    if not path.is_file():
        raise ConfigError(f"{path} doesn't exist; is {path.parent} the folder of a run?")
    found = recipes.read_mapping(path)
    kind = recipes.kind_of(found, str(path))
    if kind is None:
        raise ConfigError(f"kind is missing in {path}; it must be one of train, sft.")
    plain = {key: _mapped(item, _unescape) for key, item in found.items() if key != "kind"}
    return resolve(TrainConfig if kind == "train" else SftConfig, plain)


def absolute(path: str | None) -> str | None:
    """The absolute path of what exists here; anything else (a hub name) as it is."""
    if path is None or not Path(path).expanduser().exists():
        return path
    return str(Path(path).expanduser().absolute())
