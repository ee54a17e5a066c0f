"""The resolved configuration on disk: `config.yaml` in the run folder.

Written when a run starts, read by resume, eval and show. It holds every key, so it doesn't
change meaning when a default of a later Parity does. Invariant: `load_saved(save(c))` equals `c`.
"""

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


def to_yaml(config: TrainConfig | SftConfig) -> str:
    """The config as a YAML recipe with every key."""
    return yaml.dump(
        to_recipe(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100
    )


def save(config: TrainConfig | SftConfig, path: Path) -> None:
    """Write the config; the file appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(HEADER + to_yaml(config), encoding="utf-8")
    partial.replace(path)


def load_saved(path: Path) -> TrainConfig | SftConfig:
    """The config that `save` wrote; raises ConfigError where the file is missing or altered."""
    if not path.is_file():
        raise ConfigError(f"{path} doesn't exist; is {path.parent} the folder of a run?")
    plain = recipes.read_mapping(path)
    kind = recipes.kind_of(plain, str(path))
    if kind is None:
        raise ConfigError(f"kind is missing in {path}; it must be one of train, sft.")
    del plain["kind"]
    return resolve(TrainConfig if kind == "train" else SftConfig, plain)
