"""Name -> class, imported on first use, open to other packages.

Each seam (a plural folder) owns one `Registry` in its `__init__.py`: the table of what
ships, merged with the entry points of the group `parity.<seam>`. Looking up a name
imports only the module behind it; entry points are read only for names that don't ship.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from operator import attrgetter
from typing import (
    Literal,
    Protocol,
    TypeGuard,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from parity.errors import ConfigError, UnsupportedError


@runtime_checkable
class Configured(Protocol):
    """An implementation of another package that brings the section of its run file."""

    Config: type


class Registry:
    """The implementations of one seam by the name users write in a run file."""

    def __init__(self, seam: str, table: Mapping[str, str]) -> None:
        """`table` maps a name to `"module:attribute"`."""
        self.seam = seam
        self._table = dict(table)

    def names(self) -> list[str]:
        """Every known name, sorted; third-party ones included."""
        return sorted({*self._table, *self.foreign_names()})

    def foreign_names(self) -> list[str]:
        """The names that only other packages bring, sorted."""
        return sorted({point.name for point in self._points()} - self._table.keys())

    def load(self, name: str) -> object:
        """The class or function behind `name`.

        Raises ConfigError for an unknown name and UnsupportedError where the import failed.
        """
        target = self._target(name)
        path, _, attribute = target.partition(":")
        try:
            module = import_module(path)
        except ImportError as error:
            raise UnsupportedError(
                f"{self.seam}.{name} needs {error.name or target}, which can't be imported "
                f"({error}); install the extra that brings it or choose one of {self.names()}."
            ) from error
        try:
            return attrgetter(attribute)(module)
        except AttributeError as error:
            raise ConfigError(
                f"{self.seam}.{name} is registered as {target}, which doesn't exist ({error});"
                " correct the entry point of the package that registers it."
            ) from error

    def config_of(self, name: str) -> type:
        """The frozen dataclass `Config` of an implementation that another package brings.

        Raises ConfigError where it has none, or none that takes `name`; else as `load`.
        """
        found = self.load(name)
        place = f"{self.seam}.{name} ({self._target(name)})"
        config = found.Config if isinstance(found, Configured) else None
        if not _is_section(config):
            what = "no attribute Config" if config is None else f"the Config {config!r}"
            raise ConfigError(
                f"{place} has {what}; a run file can choose it only where Config is a frozen"
                " dataclass with a field `name`."
            )
        try:
            kind = field_types(config).get("name")
        except NameError as error:
            raise ConfigError(
                f"the annotations of Config of {place} can't be read ({error}); import what they"
                " name at run time."
            ) from error
        if kind is not str and (get_origin(kind) is not Literal or name not in get_args(kind)):
            raise ConfigError(
                f"Config of {place} has no field that takes its name; add"
                f' `name: Literal["{name}"] = "{name}"`.'
            )
        return config

    def _target(self, name: str) -> str:
        """`"module:attribute"` of a name; one that ships is never another package's."""
        if name in self._table:
            return self._table[name]
        points = [point for point in self._points() if point.name == name]
        if not points:
            raise ConfigError(f"{self.seam} has no {name!r}; {known(name, self.names())}")
        targets = sorted({f"{point.module}:{point.attr}" for point in points})
        if len(targets) > 1:
            raise ConfigError(
                f"{self.seam}.{name} is registered as {' and as '.join(targets)}; uninstall all"
                " packages but one that register it."
            )
        return targets[0]

    def _points(self) -> EntryPoints:
        return entry_points(group=f"parity.{self.seam}")


@cache
def field_types(config: type) -> Mapping[str, object]:
    """The type of each field of a dataclass, also where its module postpones annotations.

    Raises NameError where a postponed annotation names what doesn't exist at run time.
    """
    assert is_dataclass(config), f"{config} isn't a dataclass"
    found = fields(config)
    hints = get_type_hints(config) if any(isinstance(field.type, str) for field in found) else {}
    return {field.name: hints.get(field.name, field.type) for field in found}


def _is_section(config: object) -> TypeGuard[type]:
    """Whether it is a frozen dataclass that is built from all of its fields."""
    if not isinstance(config, type) or not is_dataclass(config):
        return False
    parameters = config.__dataclass_params__  # pyright: ignore[reportAttributeAccessIssue]
    return parameters.frozen and all(field.init for field in fields(config))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, if any does."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return matches[0] if matches else None


def known(name: str, names: Iterable[str]) -> str:
    """The end of an error sentence: what is known, and the nearest name where there is one."""
    names = list(names)
    guess = nearest(name, names)
    hint = f" Did you mean {guess!r}?" if guess else ""
    return f"known: {', '.join(names)}.{hint}"
