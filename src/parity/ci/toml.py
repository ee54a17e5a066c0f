"""Reads a TOML file strictly: every value is taken by name and type, and the rest is refused.

Used by `config.py` and by the packages that own a section of `ci.toml`. Invariant: an error
names the file, the line and what is allowed there.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Self, TypeVar, cast

from parity.ci.lines import Lines
from parity.ci.text import shown
from parity.errors import ConfigError
from parity.registry import known

Value = TypeVar("Value")
MOST_BYTES = 1024**2
MOST = 2**53  # of a number, where a key has no limit of its own
NAME_CHARACTERS = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass
class Table:
    """One table of a TOML file, which forgets nothing: `done` refuses the keys nobody took."""

    file: str
    lines: Lines
    place: tuple[str, ...]
    values: Mapping[str, object]
    _taken: set[str] = field(default_factory=set[str])

    @classmethod
    def read(cls, path: Path) -> Self:
        """The root table of a file; raises ConfigError where it is missing or isn't TOML."""
        try:
            size_bytes = path.stat().st_size
            text = path.read_text(encoding="utf-8-sig") if size_bytes <= MOST_BYTES else None
        except FileNotFoundError as error:
            raise ConfigError(
                f"there is no {path}; hardware CI is described by that file"
                " (docs/hardware-ci.md shows one)."
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} can't be read ({error}).") from error
        if text is None:
            raise ConfigError(f"{path} has {size_bytes} bytes; at most {MOST_BYTES} are read.")
        return cls.parse(text, file=path.name)

    @classmethod
    def parse(cls, text: str, *, file: str = "ci.toml") -> Self:
        """The root table of TOML text; `file` is its name in errors."""
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers and nesting without end
            raise ConfigError(f"{file} isn't valid TOML: {error}.") from error
        return cls(file, Lines(text), (), values)

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self.values

    def names(self) -> list[str]:
        """Every key, in the order of the file."""
        return list(self.values)

    def error(self, key: str | None, problem: str) -> ConfigError:
        """A ConfigError that begins with file, line and full key."""
        place = (*self.place, key) if key is not None else self.place
        name = ".".join(part if part.isprintable() else ascii(part) for part in place)
        name = name[:NAME_CHARACTERS] or "the file"
        return ConfigError(f"{self.file}:{self.lines.of(place)}: {name} {problem}")

    def text(self, key: str, default: str | None = None) -> str:
        """A string that isn't empty; required where there is no default."""
        value = self._take(key, str, "a string", default)
        if not value.strip():
            raise self.error(key, "is empty; say what it is or leave the key out.")
        if CONTROL.search(value):
            raise self.error(key, f"is {shown(value)}; control characters aren't allowed.")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string that isn't empty, or None where the key is absent."""
        return self.text(key) if self.has(key) else None

    def word(self, key: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of the allowed words."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(key, f"is {shown(value)}; {known(value, allowed)}")
        return value

    def integer(
        self, key: str, default: int | None = None, *, least: int = 0, most: int = MOST
    ) -> int:
        """A whole number from `least` to `most`."""
        value = self._take(key, int, "a whole number", default)
        if not least <= value <= most:
            raise self.error(key, f"is {shown(value)}; it must be {_limits(least, most)}.")
        return value

    def optional_integer(self, key: str, *, least: int = 0, most: int = MOST) -> int | None:
        """A whole number, or None where the key is absent."""
        return self.integer(key, least=least, most=most) if self.has(key) else None

    def number(
        self, key: str, default: float | None = None, *, least: float = 0.0, most: float = MOST
    ) -> float:
        """A number from `least` to `most`."""
        value = self._take(key, (int, float), "a number", default)
        if not least <= value <= most:
            raise self.error(key, f"is {shown(value)}; it must be {_limits(least, most)}.")
        return float(value)

    def optional_number(self, key: str, *, least: float = 0.0) -> float | None:
        """A finite number, or None where the key is absent."""
        return self.number(key, least=least) if self.has(key) else None

    def boolean(self, key: str, default: bool | None = None) -> bool:  # noqa: FBT001
        """True or false."""
        return self._take(key, bool, "true or false", default)

    def day(self, key: str) -> date:
        """A date written as 2026-12-31."""
        return self._take(key, date, "a date such as 2026-12-31", None)

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """A list of non-empty strings without repetition."""
        found = self._take(key, (list, tuple), "a list of strings", default)
        items = cast("Sequence[object]", found)
        wrong = [item for item in items if not isinstance(item, str) or not item.strip()]
        if wrong:
            raise self.error(key, f"holds {shown(wrong[0])}; each item must be a non-empty string.")
        words = tuple(str(item) for item in items)
        if controlled := [word for word in words if CONTROL.search(word)]:
            raise self.error(key, f"holds {shown(controlled[0])}; no control characters, please.")
        twice = [word for word, count in Counter(words).items() if count > 1]
        if twice:
            raise self.error(key, f"names {shown(twice[0])} twice; once is enough.")
        return words

    def words(
        self, key: str, allowed: Sequence[str], default: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        """A list of allowed words."""
        found = self.texts(key, default)
        for word in found:
            if word not in allowed:
                raise self.error(key, f"names {shown(word)}; {known(word, allowed)}")
        return found

    def mapping(self, key: str) -> dict[str, str]:
        """A table of strings by name; empty where the key is absent."""
        if not self.has(key):
            return {}
        inner = self.table(key)
        return {name: inner.text(name) for name in inner.names()}

    def variables(self, key: str) -> dict[str, str]:
        """Environment variables by name; an empty value is one too."""
        if not self.has(key):
            return {}
        inner = self.table(key)
        found: dict[str, str] = {}
        for name in inner.names():
            value = inner._take(name, str, "a string", None)
            if not VARIABLE.fullmatch(name) or "\0" in value:
                raise inner.error(name, "is no environment variable: letters, digits and '_' only.")
            found[name] = value
        return found

    def table(self, key: str) -> "Table":
        """The table of that name; an empty one where it is absent."""
        values = self._take(key, dict, "a table", cast("dict[str, object]", {}))
        return Table(self.file, self.lines, (*self.place, key), values)

    def tables(self, key: str) -> dict[str, "Table"]:
        """The tables below a key, such as [suites.fast], by name."""
        outer = self.table(key)
        return {name: outer.table(name) for name in outer.names()}

    def array(self, key: str) -> list["Table"]:
        """The tables of an array such as [[paths]]; empty where there is none."""
        found = self._take(key, list, "an array of tables", cast("list[object]", []))
        tables: list[Table] = []
        for index, values in enumerate(found):
            if not isinstance(values, dict):
                raise self.error(key, f"must be written as [[{key}]] tables.")
            place = (*self.place, f"{key}[{index}]")
            tables.append(Table(self.file, self.lines, place, cast("dict[str, object]", values)))
        return tables

    def done(self) -> None:
        """Refuse every key that nothing has taken."""
        for key in self.values:
            if key not in self._taken:
                raise self.error(key, f"is unknown; {known(key, sorted(self._taken))}")

    def _take(
        self, key: str, kind: type[Value] | tuple[type, ...], what: str, default: Value | None
    ) -> Value:
        self._taken.add(key)
        if key not in self.values:
            if default is None:
                raise self.error(key, f"is missing; it must be {what}.")
            return default
        value = self.values[key]
        is_bool_for_number = isinstance(value, bool) and kind is not bool
        if not isinstance(value, kind) or is_bool_for_number:
            raise self.error(key, f"is {shown(value)}; it must be {what}.")
        return cast("Value", value)


def _limits(least: float, most: float) -> str:
    return f"a finite number >= {least:g}" if most == MOST else f"{least:g} to {most:g}"


def named(tables: Mapping[str, Table]) -> Iterator[tuple[str, Table]]:
    """The tables by name, each name checked to be a plain word (letters, digits, - _ .)."""
    for name, table in tables.items():
        if not NAME.fullmatch(name):
            raise table.error(
                None,
                "has a name that isn't made of letters and digits, with '-', '_', '.' behind the"
                " first of them.",
            )
        yield name, table
