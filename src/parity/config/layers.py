"""Who set a key: what `defaults` brought in, the recipe's own lines, or an override.

When a stronger layer chooses another `name` for a section, the keys that only the old name has
are left over from a weaker layer, not a mistake of the user: they are dropped. Keys that both
names have keep their value. Used by `compose.py`. Invariant: a key that the layer which chose
the name (or a stronger one) set is never dropped.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, is_dataclass

from parity.config import keys


@dataclass(frozen=True, slots=True)
class Layers:
    """The dotted keys that each layer sets; every other key came through `defaults`."""

    own: AbstractSet[str]
    overrides: AbstractSet[str]

    def strength(self, path: str) -> int:
        """2 for an override, 1 for the recipe's own lines, 0 for what it inherits.

        An entry of an open mapping (`tasks.settings.x`) sets the mapping too.
        """
        return 2 if _sets(self.overrides, path) else 1 if _sets(self.own, path) else 0


def _sets(layer: AbstractSet[str], path: str) -> bool:
    return path in layer or any(key.startswith(f"{path}.") for key in layer)


def drop_replaced(schema: type, plain: dict[str, object], layers: Layers, prefix: str = "") -> None:
    """Remove from `plain` the keys of section names that a stronger layer replaced."""
    assert is_dataclass(schema)
    for field in fields(schema):
        section = plain.get(field.name)
        if not isinstance(section, dict) or not keys.variants(field.type):
            continue
        path = prefix + field.name
        default = keys.default_of(field)
        chosen = _chosen(field.type, section, path) or (None if default is None else type(default))
        if chosen is None:
            continue
        chooser = layers.strength(f"{path}.name")
        for key in list(section):
            is_foreign = keys.field_of(chosen, key) is None and keys.owners_of(field.type, key)
            if is_foreign and layers.strength(f"{path}.{key}") < chooser:
                del section[key]
        drop_replaced(chosen, section, layers, f"{path}.")


def _chosen(annotation: object, section: dict[str, object], path: str) -> type | None:
    """The variant that the section's `name` names, if it names one; `auto` means a file."""
    variants = keys.variants(annotation)
    if not keys.section_names(annotation):
        return variants[0]
    name = section.get("name")
    if name == keys.AUTO:
        return next((v for v in variants if keys.field_of(v, "path") is not None), None)
    return keys.variant_of(annotation, name, at=path)
