"""Name -> class, imported on first use, open to other packages.

Each seam (a plural folder) owns one `Registry` in its `__init__.py`: the table of what
ships, merged with the entry points of the group `parity.<seam>`. Looking up a name
imports only the module behind it.
"""

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points

from parity.errors import ConfigError, UnsupportedError


class Registry:
    """The implementations of one seam by the name users write in a run file."""

    def __init__(self, seam: str, table: Mapping[str, str]) -> None:
        """`table` maps a name to `"module:attribute"`."""
        self.seam = seam
        self._table = dict(table)

    def names(self) -> list[str]:
        """Every known name, sorted; third-party ones included."""
        return sorted({*self._table, *(point.name for point in self._points())})

    def load(self, name: str) -> object:
        """The class or function behind `name`.

        Raises ConfigError for an unknown name and UnsupportedError where the import failed.
        """
        target = self._table.get(name)
        if target is None:
            target = next((point.value for point in self._points() if point.name == name), None)
        if target is None:
            raise ConfigError(f"{self.seam} has no {name!r}; {known(name, self.names())}")
        module, _, attribute = target.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ImportError as error:
            raise UnsupportedError(
                f"{self.seam}.{name} needs {error.name or target}, which can't be imported "
                f"({error}); install the extra that brings it or choose one of {self.names()}."
            ) from error

    def _points(self) -> Iterable:  # pyright: ignore[reportMissingTypeArgument]
        return entry_points(group=f"parity.{self.seam}")


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
