"""Reads `key=value` words of the command line with Hydra's own override grammar.

Users write plain `key=value` for every key of the schema, whether or not the recipe mentions
it. Used by `compose.py`. Invariant: what comes out names existing keys and single values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as HydraOverride
from hydra.errors import HydraException

from parity.config import keys
from parity.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Override:
    """One accepted override: the keys that it sets, and the text that Hydra is given."""

    paths: tuple[str, ...]
    text: str


def parse(schema: type, words: Sequence[str]) -> list[Override]:
    """Read and check overrides, in order; raises ConfigError that quotes the word."""
    parser = OverridesParser.create()
    return [_parse_one(schema, parser, word) for word in words]


def set_paths(path: str, value: object) -> Iterator[str]:
    """The dotted keys that a value at `path` sets: itself, and what a mapping holds."""
    yield path
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from set_paths(f"{path}.{key}", item)


def _parse_one(schema: type, parser: OverridesParser, word: str) -> Override:
    key, equals, value = word.lstrip("+").partition("=")
    if not word.startswith("~") and (not equals or not key.strip()):
        raise ConfigError(f"{word!r} isn't key=value; write for example steps=50.")
    try:
        parsed = parser.parse_override(word)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        raise ConfigError(
            f"{word} can't be read ({reason}). Quote the value:"
            f""" "{key}='{quoted}'" (the outer quotes are for the shell)."""
        ) from error
    return _checked(schema, parsed, word)


def _checked(schema: type, parsed: HydraOverride, word: str) -> Override:
    path, value = parsed.key_or_group, word.partition("=")[2]
    if parsed.is_delete():
        raise ConfigError(f"{word}: a key can't be removed; set it to null or to its default.")
    if parsed.package is not None:
        raise ConfigError(f"{word}: '@' has no meaning here; write the dotted key, as in a.b=1.")
    if parsed.is_sweep_override():
        raise ConfigError(
            f"{word} is a sweep of several values, and one run takes one;"
            f" for a list write '{path}=[{value}]'."
        )
    keys.require(schema, path, value)
    return Override(tuple(set_paths(path, parsed.value())), f"++{word.lstrip('+')}")
