"""The keys of the run file, read off the dataclass tree; used by overrides, errors and completion.

A section is a dataclass. A section whose type is a union of dataclasses has one variant per
`name`; a key that only some variants have belongs to those names. A name that doesn't ship may
be another package's, which brings its own variant (`plugins.py`). Below a mapping field every
key is allowed. Invariant: the dataclasses are the only list of keys there is.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

from parity.config import plugins
from parity.errors import ConfigError
from parity.registry import field_types, nearest

AUTO = "auto"  # the name of a file section whose kind is told by the suffix of its path


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the run file: dotted path, type, and the section names that have it."""

    path: str
    annotation: object
    owners: tuple[str, ...] = ()  # empty: applies whatever the section's name is


def members(annotation: object) -> tuple[object, ...]:
    """The alternatives of a union, or the type itself."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def accepts_none(annotation: object) -> bool:
    """Whether null is a value of this type."""
    return any(member in (None, NoneType) for member in members(annotation))


def variants(annotation: object) -> tuple[type, ...]:
    """The dataclasses that a section of this type may become; empty for a plain value."""
    return tuple(
        member
        for member in members(annotation)
        if isinstance(member, type) and is_dataclass(member)
    )


def item_type(annotation: object) -> object | None:
    """The type of the entries of `tuple[T, ...]`, or None for anything else."""
    for member in members(annotation):
        if get_origin(member) is tuple:
            return get_args(member)[0]
    return None


def is_open(annotation: object) -> bool:
    """Whether any key may follow below (a mapping field)."""
    return any(get_origin(member) is Mapping for member in members(annotation))


def field_of(section: type, name: str) -> Field[object] | None:
    """The dataclass field of that name, if there is one."""
    return next((field for field in _fields(section) if field.name == name), None)


def _fields(section: type) -> tuple[Field[object], ...]:
    assert is_dataclass(section), f"{section} isn't a config section"
    types = field_types(section)
    return tuple(_typed(field, types[field.name]) for field in fields(section))


def _typed(field: Field[object], annotation: object) -> Field[object]:
    """The field with its type, where its module postpones annotations."""
    if field.type is annotation:
        return field
    typed = copy.copy(field)
    typed.type = annotation  # pyright: ignore[reportAttributeAccessIssue]
    return typed


def names_of(section: type) -> tuple[str, ...]:
    """The values of `name` that choose this variant; empty where it has no `name`."""
    field = field_of(section, "name")
    if field is None or get_origin(field.type) is not Literal:
        return ()
    return get_args(field.type)


def section_names(annotation: object) -> tuple[str, ...]:
    """Every shipped `name` of a section of this type, in the order of the schema."""
    return tuple(name for variant in variants(annotation) for name in names_of(variant))


def known_names(annotation: object) -> tuple[str, ...]:
    """Every `name` that a section of this type may have; third-party ones last."""
    return (*section_names(annotation), *plugins.names(variants(annotation)))


def variant_of(annotation: object, name: object, *, at: str) -> type | None:
    """The variant that `name` chooses, imported where it is a third-party one; None: unknown.

    Raises ConfigError, naming the section `at`, where another package registers `name` without
    a section that a run file can fill.
    """
    shipped = variants(annotation)
    found = next((variant for variant in shipped if name in names_of(variant)), None)
    if found is not None or not isinstance(name, str):
        return found
    try:
        return plugins.section(shipped, name)
    except ConfigError as error:
        raise ConfigError(f"{at}.name is {name!r}, which can't be used: {error}") from error


def owners_of(annotation: object, name: str) -> tuple[str, ...]:
    """The section names whose variant has the key `name`."""
    return tuple(
        owner
        for variant in variants(annotation)
        if field_of(variant, name) is not None
        for owner in names_of(variant)
    )


def required(section: type) -> list[str]:
    """The keys without a default, which a section of this type must give."""
    return [
        field.name
        for field in _fields(section)
        if field.default is MISSING and field.default_factory is MISSING
    ]


def default_of(field: Field[object]) -> object | None:
    """The value of a key that the run file doesn't mention; None where that is null."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def walk(schema: type, prefix: str = "") -> Iterator[Key]:
    """Every key below `schema`, sections included, depth first in the order of the schema."""
    for field in _fields(schema):
        path = prefix + field.name
        yield Key(path, field.type)
        seen: set[str] = set()
        for section in variants(field.type):
            for key in walk(section, f"{path}."):
                if key.path not in seen:
                    seen.add(key.path)
                    child = key.path.removeprefix(f"{path}.").split(".")[0]
                    owners = owners_of(field.type, child)
                    everywhere = len(owners) == len(section_names(field.type))
                    yield Key(
                        key.path, key.annotation, key.owners or (() if everywhere else owners)
                    )


def leaves(schema: type) -> list[Key]:
    """The keys that hold values, not sections, in the order of the schema.

    The type of a section's `name` is the Literal of every known name.
    """
    found = {key.path: key for key in walk(schema)}
    return [_named(key, found) for key in found.values() if not variants(key.annotation)]


def _named(key: Key, found: Mapping[str, Key]) -> Key:
    parent, _, child = key.path.rpartition(".")
    names = known_names(found[parent].annotation) if child == "name" and parent else ()
    if not names:
        return key
    return replace(key, annotation=Literal[names])  # pyright: ignore[reportInvalidTypeForm]


def suggestion(schema: type, path: str) -> str:
    """The hint that ends an unknown-key error: the known key that looks most like `path`."""
    paths = [key.path for key in walk(schema)]
    path = ".".join(part for part in path.split(".") if not part.isdecimal())
    parent, _, child = path.rpartition(".")
    siblings = {p.rpartition(".")[2]: p for p in paths if p.rpartition(".")[0] == parent}
    item = item_type(next((key.annotation for key in walk(schema) if key.path == parent), None))
    for variant in variants(item):
        siblings |= {field.name: f"{parent}.N.{field.name}" for field in _fields(variant)}
    same_leaf = [p for p in paths if p.rpartition(".")[2] == child]
    close = nearest(child, siblings)
    if close is not None:
        return f" Did you mean {siblings[close]}?"
    if same_leaf:
        one_of = "one of " if len(same_leaf) > 1 else ""
        return f" Did you mean {one_of}{', '.join(same_leaf)}?"
    if siblings and parent:
        return f" Keys of {parent}: {', '.join(siblings)}."
    guess = nearest(path, paths)
    if guess is not None:
        return f" Did you mean {guess}?"
    return " `parity config RECIPE` prints every key."


def require(schema: type, path: str, value: str = "") -> None:
    """Refuse a dotted path that isn't a key of `schema`; `value` is shown in the message.

    A key of a section that another package may fill passes: `resolve.py`, which knows the
    section's name, has the last word.
    """
    annotations: tuple[object, ...] = (schema,)
    for part in path.split("."):
        below: list[object] = []
        for annotation in annotations:
            item = item_type(annotation)
            if is_open(annotation):
                return
            if item is not None and part.isdecimal():
                below.append(item)
            for variant in variants(annotation):
                if (field := field_of(variant, part)) is not None:
                    below.append(field.type)
        if not below and any(plugins.names(variants(annotation)) for annotation in annotations):
            return
        if not below:
            shown = f"{path}={value}" if value else path
            raise ConfigError(f"{shown}: there is no key {path}.{suggestion(schema, path)}")
        annotations = tuple(below)
