"""Which sections of the run file other packages may fill, and with what.

A class that another package registers for one of these seams (entry points `parity.tasks` and
so on) brings its section as its attribute `Config`. Used by `keys.py`. Invariants: a module of
another package is imported only where its name is used; entry points are read only for a name
or a key that doesn't ship.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

from parity.algorithms.advantages import ADVANTAGES
from parity.algorithms.config import GrpoAdvantageConfig, PpoClipLossConfig
from parity.algorithms.losses import LOSSES
from parity.errors import ConfigError
from parity.registry import Registry, field_types
from parity.rewards import REWARDS
from parity.rewards.config import TaskRewardConfig
from parity.tasks import TASKS
from parity.tasks.config import ReasoningGymConfig
from parity.types import Json


@dataclass(frozen=True, slots=True)
class Seam:
    """Where the implementations of a section are, and the fields that Parity itself reads."""

    registry: Registry
    shared: tuple[str, ...] = ()


# By a section that ships: a union that holds it may hold a third-party one too.
SEAMS: Mapping[type, Seam] = {
    ReasoningGymConfig: Seam(TASKS),
    TaskRewardConfig: Seam(REWARDS),
    GrpoAdvantageConfig: Seam(ADVANTAGES),
    PpoClipLossConfig: Seam(LOSSES, shared=("aggregation", "old_logprobs")),
}


def names(shipped: Sequence[type]) -> list[str]:
    """The names that other packages register for a section that ships as these variants."""
    return [name for variant in shipped if variant in SEAMS for name in _foreign(variant)]


def section(shipped: Sequence[type], name: str) -> type | None:
    """The section of a third-party name, or None where nobody registers it.

    Raises ConfigError where its class brings none that a run file can fill.
    """
    for variant in shipped:
        if variant in SEAMS and name in _foreign(variant):
            config = SEAMS[variant].registry.config_of(name)
            _check_types(config)
            _check_shared(config, variant)
            return config
    return None


def _foreign(variant: type) -> list[str]:
    return SEAMS[variant].registry.foreign_names()


def _check_types(config: type) -> None:
    for name, annotation in field_types(config).items():
        if not _is_fillable(annotation):
            raise ConfigError(
                f"the field {name} of {_place(config)} is a {annotation}, which a run file can't"
                " fill; use bool, int, float, str, Literal, X | None, tuple[X, ...],"
                " Mapping[str, Json] or a dataclass of these."
            )


def _check_shared(config: type, variant: type) -> None:
    types, shipped = field_types(config), field_types(variant)
    for name in SEAMS[variant].shared:
        if types.get(name) != shipped[name]:
            raise ConfigError(
                f"{_place(config)} has no field {name} of the type that {variant.__name__} gives"
                f" it; add {name}, which Parity itself reads."
            )


def _is_fillable(annotation: object) -> bool:
    """Whether `resolve.py` can turn plain data into this type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        values = [member for member in arguments if member is not NoneType]
        is_mixed = len(values) > 1 and any(get_origin(v) in (tuple, Mapping) for v in values)
        return not is_mixed and all(_is_fillable(member) for member in values)
    if origin is tuple:
        return len(arguments) == 2 and arguments[1] is Ellipsis and _is_fillable(arguments[0])
    if origin is Mapping:
        return arguments[0] is str and _kinds(arguments[1]) == _kinds(Json)
    if origin is Literal:
        return all(isinstance(word, str) for word in arguments)
    if isinstance(annotation, type) and is_dataclass(annotation):
        _check_types(annotation)
        return True
    return annotation in (bool, int, float, str, NoneType, None)


def _kinds(union: object) -> set[object]:
    """What a union is made of; postponed annotations spell out the recursion of Json."""
    return {get_origin(member) or member for member in get_args(union)}


def _place(config: type) -> str:
    return f"{config.__module__}.{config.__qualname__}"
