"""Turns a plain mapping into the frozen dataclasses of `schema.py`, and back.

The conversion is closed and strict: an unknown key, a key of another section name, a value of
the wrong type and a number that isn't finite are errors that name the full key, the value and
the remedy. A section whose name another package registers becomes that package's `Config`, and
is held to the same rules. Used by `compose.py`, and by `arithmetic.py` for the parts of a sum.
Invariant: `resolve(C, to_plain(c)) == c` for every config `c` of class `C`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Literal, TypeVar, get_args, get_origin

from parity.config import keys
from parity.errors import ConfigError
from parity.registry import known, nearest
from parity.types import Json

Section = TypeVar("Section")
_WORDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def resolve(schema: type[Section], plain: Mapping[str, object], *, at: str = "") -> Section:
    """Build `schema` from `plain`; `at` is the dotted section name for messages."""
    result = _build(schema, plain, at, at_root=schema)
    assert isinstance(result, schema)
    return result


def resolve_union(annotation: object, plain: Mapping[str, object], *, at: str) -> object:
    """Build the variant of a section union that `plain["name"]` chooses."""
    return _section(annotation, plain, at, default=None, at_root=None)


def to_plain(config: object) -> dict[str, Json]:
    """A config as JSON-like data, keys in the order of the schema."""
    plain = _plain(config)
    assert isinstance(plain, dict)
    return plain


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str), f"{value!r} isn't plain"
    return value


def _build(
    section: type,
    plain: Mapping[str, object],
    at: str,
    *,
    default: object | None = None,
    at_root: type | None,
) -> object:
    """One dataclass from its mapping; keys that it lacks are those of `default`."""
    assert is_dataclass(section)
    values: dict[str, object] = {}
    if default is not None:
        values = {field.name: getattr(default, field.name) for field in fields(section)}
    for key, value in plain.items():
        path = f"{at}.{key}" if at else str(key)
        field = keys.field_of(section, str(key))
        if field is None:
            raise ConfigError(_unknown(section, path, value, at_root=at_root))
        if keys.variants(field.type) and isinstance(value, Mapping):
            values[field.name] = _section(
                field.type, value, path, default=keys.default_of(field), at_root=at_root
            )
        else:
            values[field.name] = _value(field.type, value, path, at_root)
    missing = next((name for name in keys.required(section) if name not in values), None)
    if missing is not None:
        path = f"{at}.{missing}" if at else missing
        raise ConfigError(f"{path} is missing and has no default; set {path}=VALUE.")
    try:
        return section(**values)
    except (ConfigError, ValueError) as error:
        raise ConfigError(_with_section(section, str(error), at)) from error


def _unknown(section: type, path: str, value: object, *, at_root: type | None) -> str:
    parent, _, child = path.rpartition(".")
    field_names = [key.path for key in keys.walk(section) if "." not in key.path]
    if at_root is not None:
        hint = keys.suggestion(at_root, path)
    elif (close := nearest(child, field_names)) is not None:
        hint = f" Did you mean {parent}.{close}?"
    else:
        hint = f" Keys of {parent}: {', '.join(field_names)}."
    return f"{path}={_shown(value)}: there is no key {path}.{hint}"


def _section(
    annotation: object,
    plain: Mapping[str, object],
    at: str,
    *,
    default: object | None,
    at_root: type | None,
) -> object:
    """The variant that `name` chooses, or the only one; `default` is the schema's own."""
    candidates = keys.variants(annotation)
    names = keys.section_names(annotation)
    chosen: type | None
    if not names:
        chosen = candidates[0]
    elif "name" in plain:
        name = plain["name"]
        chosen = keys.variant_of(annotation, name, at=at)
        if chosen is None:
            names = keys.known_names(annotation)
            raise ConfigError(f"{at}.name is {_shown(name)}; {known(str(name), names)}")
        if chosen not in candidates:
            at_root = None  # the keys of a third-party section aren't in the schema
    elif default is not None:
        chosen = type(default)
    else:
        raise ConfigError(f"{at}.name is missing; set {at}.name to one of {', '.join(names)}.")
    for key, value in plain.items():
        owners = keys.owners_of(annotation, str(key))
        if owners and keys.field_of(chosen, str(key)) is None:
            name = plain["name"] if "name" in plain else keys.names_of(chosen)[0]
            raise ConfigError(
                f"{at}.{key}={_shown(value)} has no effect: it belongs to"
                f" {at}.name={' or '.join(owners)}, and this run has {at}.name={name}."
                f" Set {at}.name={owners[0]} to switch, or remove {at}.{key}."
            )
    start = default if isinstance(default, chosen) else None
    return _build(chosen, plain, at, default=start, at_root=at_root)


def _value(annotation: object, value: object, path: str, at_root: type | None) -> object:
    """A value that isn't a section: scalar, tuple, open mapping or null."""
    if value is None:
        if keys.accepts_none(annotation) or annotation is Json:
            return None
        raise ConfigError(f"{path} is null; it must be {_allowed(annotation)}.")
    if keys.is_open(annotation):
        if not isinstance(value, Mapping):
            raise _wrong(path, value, annotation)
        return {str(key): _json(item, f"{path}.{key}") for key, item in value.items()}
    item = keys.item_type(annotation)
    if item is not None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _wrong(path, value, annotation)
        return tuple(_item(item, v, f"{path}.{i}", at_root) for i, v in enumerate(value))
    for member in keys.members(annotation):
        found = _scalar(member, value, path)
        if found is not None:
            return found
    raise _wrong(path, value, annotation)


def _item(annotation: object, value: object, path: str, at_root: type | None) -> object:
    if keys.variants(annotation) and isinstance(value, Mapping):
        return _section(annotation, value, path, default=None, at_root=at_root)
    return _value(annotation, value, path, at_root)


def _scalar(member: object, value: object, path: str) -> object | None:
    """`value` as a `member`, or None where it isn't one."""
    if get_origin(member) is Literal:
        # YAML 1.1 reads a bare `off` or `on` as a truth value.
        word = {False: "off", True: "on"}[value] if isinstance(value, bool) else value
        return word if word in get_args(member) else None
    if isinstance(value, bool | str):  # a bool is an int to Python, not here
        return value if member is type(value) else None
    if not isinstance(value, int | float):
        return None
    number = _finite(value, path)
    if member is int:
        return int(value) if number.is_integer() else None
    return number if member is float else None


def _finite(value: float, path: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigError(f"{path} is {value}; it must be a finite number.")
    return number


def _json(value: object, path: str) -> Json:
    """Plain data below an open mapping; only numbers that aren't finite are refused."""
    if isinstance(value, Mapping):
        return {str(key): _json(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item, f"{path}.{index}") for index, item in enumerate(value)]
    if isinstance(value, float):
        return _finite(value, path)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ConfigError(f"{path} is a {type(value).__name__}; it must be plain YAML data.")


def _wrong(path: str, value: object, annotation: object) -> ConfigError:
    allowed = _allowed(annotation)
    message = f"{path} is {_shown(value)} ({_kind(value)}); it must be {allowed}."
    words = [w for m in keys.members(annotation) if get_origin(m) is Literal for w in get_args(m)]
    if words and isinstance(value, str):
        message = f"{path} is {value!r}; {known(value, words)}"
    elif str in keys.members(annotation) and not isinstance(value, Mapping | Sequence):
        message += f""" Quote it: "{path}='{_shown(value)}'"."""
    elif keys.item_type(annotation) is not None and isinstance(value, str):
        message += f" Write '{path}=[{value}]'."
    elif value in ("none", "off", "no", False) and keys.accepts_none(annotation):
        message += f" Set {path}=null to switch it off."
    return ConfigError(message)


def _allowed(annotation: object) -> str:
    """The type in words."""
    parts: list[str] = []
    for member in keys.members(annotation):
        if get_origin(member) is Literal:
            parts.append("one of " + ", ".join(map(str, get_args(member))))
        elif get_origin(member) is tuple:
            parts.append("a list")
        elif keys.is_open(member) or keys.variants(member):
            parts.append("a section (key: value)")
        elif isinstance(member, type) and member in _WORDS:
            parts.append(_WORDS[member])
    if keys.accepts_none(annotation):
        parts.append("null")
    return " or ".join(dict.fromkeys(parts))


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    return _WORDS.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value) if isinstance(value, str) else str(value)


def _with_section(section: type, message: str, at: str) -> str:
    """Put the section in front of the field names in a message of `__post_init__`."""
    if not at:
        return message
    assert is_dataclass(section)
    names = "|".join(field.name for field in fields(section))
    return re.sub(rf"(?<![\w.])({names})(?=(?:\.\w+)*(?: is |=))", rf"{at}.\1", message)
