"""From a recipe and overrides to the resolved config: Hydra composes, `resolve.py` checks.

Works from any working directory and from an installed wheel, because recipes are package
data. Used by the command line and by resume. Three layers, each over the one before: what
`defaults` brings in, the recipe's own lines, the overrides. Invariant: the caller's Hydra state
is the same before and after.
"""

import tempfile
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TypeVar

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from parity.config import environment, keys, overrides, recipes
from parity.config.layers import Layers, drop_replaced
from parity.config.recipes import Kind, Recipe
from parity.config.resolve import resolve
from parity.config.schema import SftConfig, TrainConfig
from parity.errors import ConfigError
from parity.tasks.config import FileConfig

Config = TypeVar("Config", TrainConfig, SftConfig)
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
OWN_RECIPE = "parity_own_recipe"  # the name under which Hydra sees a user's file


def load_train(recipe: str, words: Sequence[str] = ()) -> TrainConfig:
    """The config of a training recipe (name or path) with `key=value` overrides."""
    return _load(TrainConfig, "train", recipe, words)


def load_sft(recipe: str, words: Sequence[str] = ()) -> SftConfig:
    """The config of an SFT recipe (name or path) with `key=value` overrides."""
    return _load(SftConfig, "sft", recipe, words)


def load(recipe: str, words: Sequence[str] = ()) -> TrainConfig | SftConfig:
    """The config of a recipe of either kind; one that doesn't say its kind is for training."""
    kind = recipes.kind_of(_compose(recipes.read(recipe), ()), recipe)
    return load_sft(recipe, words) if kind == "sft" else load_train(recipe, words)


def _load(schema: type[Config], wanted: Kind, recipe: str, words: Sequence[str]) -> Config:
    found = recipes.read(recipe)
    accepted = _accepted(schema, wanted, found, recipe, words)
    plain = _compose(found, [override.text for override in accepted])
    _require_kind(recipes.kind_of(plain, recipe), wanted, recipe)
    plain.pop("kind", None)
    layers = Layers(
        own=frozenset(
            p for key, value in found.body.items() for p in overrides.set_paths(key, value)
        ),
        overrides=frozenset(path for override in accepted for path in override.paths),
    )
    drop_replaced(schema, plain, layers)
    for key in keys.walk(schema):
        if FileConfig in keys.variants(key.annotation):
            _settle_suffix(plain, key.path)
    _default_output_dir(plain)
    return resolve(schema, plain)


def _accepted(
    schema: type, wanted: Kind, found: Recipe, recipe: str, words: Sequence[str]
) -> list[overrides.Override]:
    """The overrides; where one doesn't fit, a recipe of the other kind is named first."""
    try:
        return overrides.parse(schema, words)
    except ConfigError:
        _require_kind(recipes.kind_of(_compose(found, ()), recipe), wanted, recipe)
        raise


def _require_kind(kind: Kind | None, wanted: Kind, recipe: str) -> None:
    if kind == "sft" and wanted == "train":
        raise ConfigError(f"{recipe} is an SFT recipe; use `parity sft {recipe}`.")
    if kind == "train" and wanted == "sft":
        raise ConfigError(f"{recipe} is a training recipe; use `parity train {recipe}`.")


def _compose(recipe: Recipe, texts: Sequence[str]) -> dict[str, object]:
    """What Hydra makes of a recipe and override texts, as plain data."""
    if "hydra" in recipe.body:
        raise ConfigError(f"hydra: has no meaning in a recipe; remove it from {recipe.path}.")
    try:
        with _own_hydra_state(), _search_path(recipe) as (name, extra):
            composed = compose(name, overrides=[*texts, *extra])
            plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except RecursionError as error:
        raise ConfigError(
            f"recipe {recipe.name} includes itself through `defaults`; name another recipe there."
        ) from error
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} is ??? in {recipe.name}; give it a value.") from error
    except (HydraException, OmegaConfBaseException) as error:
        cause = "" if error.__cause__ is None else f" ({error.__cause__})"
        reason = " ".join(f"{error}{cause}".replace(OWN_RECIPE, recipe.name).split())
        raise ConfigError(f"recipe {recipe.name} can't be composed: {reason}") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


@contextmanager
def _own_hydra_state() -> Generator[None]:
    """Hydra keeps its state in singletons; the caller's is put back, whatever happens."""
    base = VersionBase.instance()
    outer_hydra, outer_version = GlobalHydra.instance().hydra, base.version_base
    GlobalHydra.instance().hydra = None
    try:
        with warnings.catch_warnings():
            # A recipe need not say `_self_`: its own lines win over its defaults.
            warnings.filterwarnings("ignore", message=".*missing `_self_`.*")
            yield
    finally:
        GlobalHydra.instance().hydra = outer_hydra
        base.version_base = outer_version


@contextmanager
def _search_path(recipe: Recipe) -> Generator[tuple[str, list[str]]]:
    """Hydra set up so that it finds the recipe: its config name, and overrides for Hydra itself.

    A user's file is shown to Hydra under a name of its own, so that `my/quickstart.yaml` may
    say `defaults: [quickstart]`; the packaged recipes come before the files beside it.
    """
    if recipe.path is None:
        with initialize_config_module(recipes.PACKAGE, job_name="parity", version_base="1.3"):
            yield recipe.name, []
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{OWN_RECIPE}.yaml").write_text(recipe.text, encoding="utf-8")
        beside = f"file://{recipe.path.parent}".replace("\\", "\\\\").replace("'", "\\'")
        extra = [f"hydra.searchpath=['pkg://{recipes.PACKAGE}','{beside}']"]
        with initialize_config_dir(folder, job_name="parity", version_base="1.3"):
            yield OWN_RECIPE, extra


def _settle_suffix(plain: Mapping[str, object], section: str) -> None:
    """Replace `name: auto` of a file section by the kind that the suffix of its path tells."""
    found: object = plain
    for part in section.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, dict) or found.get("name") != keys.AUTO:
        return
    path = found.get("path")
    if path is None:
        found["name"] = "jsonl"  # `arithmetic.check` asks for the path
        return
    suffix = PurePath(str(path)).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"{section}.path is {path!r}, and {section}.name=auto knows {', '.join(SUFFIXES)};"
            f" convert the file, or set {section}.name=jsonl or parquet if it is one."
        )
    found["name"] = SUFFIXES[suffix]


def _default_output_dir(plain: dict[str, object]) -> None:
    """PARITY_RUNS_DIR stands in for the default of `output.dir`, never for a written value."""
    folder = environment.runs_dir()
    output = plain.setdefault("output", {})
    if folder is not None and isinstance(output, dict):
        output.setdefault("dir", str(folder))
