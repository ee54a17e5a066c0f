"""From a reward section of the run file to the reward that it names.

Used by the grader process, which receives the section as plain data, and by `sum.py` for
its parts. A reward is built from its config dataclass: one that ships, or the `Config` that
the class of another package brings. Invariant: `parse(plain(config)) == config`.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

from parity.errors import ConfigError
from parity.registry import field_types, known
from parity.rewards import REWARDS
from parity.rewards.config import RewardConfig
from parity.rewards.reward import Reward
from parity.types import Json

_CONFIGS: dict[str, type[RewardConfig]] = {config.name: config for config in get_args(RewardConfig)}
_MISFIT = object()
_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "null",
    tuple: "a list",
    Mapping: "a section",
}


def build(config: RewardConfig | Mapping[str, Json]) -> Reward:
    """The reward that `config` names; a mapping must have a `name`.

    Raises ConfigError where the section can't be used and UnsupportedError where a package
    that the reward needs isn't installed.
    """
    name = _name(config) if isinstance(config, Mapping) else config.name
    reward_class = REWARDS.load(name)
    if not isinstance(reward_class, type) or not issubclass(reward_class, Reward):
        raise ConfigError(
            f"reward.name={name} leads to {reward_class!r}; it must be a subclass of"
            " parity.rewards.reward.Reward."
        )
    section = parse(config) if isinstance(config, Mapping) else config
    return reward_class(section)  # pyright: ignore[reportCallIssue]


def parse(section: Mapping[str, Json]) -> RewardConfig:
    """The config dataclass of a section; of a third-party name, the `Config` of its class."""
    name = _name(section)
    config_class = _CONFIGS.get(name) or REWARDS.config_of(name)
    return _filled(config_class, section, f"reward {name}")  # pyright: ignore[reportReturnType]


def plain(config: RewardConfig | Mapping[str, Json]) -> dict[str, Json]:
    """A section as JSON-like data, the inverse of `parse`."""
    result = _plain(config)
    assert isinstance(result, dict), f"{config!r} isn't a section"
    return result


def _name(section: Mapping[str, Json]) -> str:
    name = section.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"name is {name!r}; {known('', REWARDS.names())}")
    return name


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str), f"{value!r} isn't plain"
    return value


def _filled(config_class: type, section: Mapping[str, Json], what: str) -> object:
    types = field_types(config_class)
    for key in section:
        if key not in types:
            raise ConfigError(f"{what} has no key {key!r}; {known(key, types)}")
    values = {key: _fitted(key, value, types[key]) for key, value in section.items()}
    try:
        return config_class(**values)
    except TypeError as error:  # a key without a default is missing
        raise ConfigError(f"{what} can't be built ({error}); give what is missing.") from error


def _fitted(key: str, value: Json, hint: object) -> object:
    """`value` as the field type `hint` wants it."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for member in members:
        found = _as_member(key, value, member)
        if found is not _MISFIT:
            return found
    kinds = [get_origin(member) or member for member in members]
    if Literal in kinds:
        raise ConfigError(f"{key} is {value!r}; {known(str(value), _words_of(members))}")
    words = " or ".join(_WORDS.get(kind, "a section") for kind in kinds)
    raise ConfigError(f"{key} is {value!r}; it must be {words}.")


def _as_member(key: str, value: Json, member: object) -> object:
    """`value` as a `member` of a field's type, or _MISFIT."""
    origin = get_origin(member)
    if isinstance(value, Mapping):
        if isinstance(member, type) and is_dataclass(member) and _takes(member, value):
            return _filled(member, value, key)
        return value if origin is Mapping else _MISFIT
    if isinstance(value, list | tuple) and origin is tuple:
        item = get_args(member)[0]
        return tuple(_fitted(f"{key}.{index}", part, item) for index, part in enumerate(value))
    if member is float and type(value) is int:  # a whole number is a number too
        return float(value)
    is_word = origin is Literal and value in get_args(member)
    return value if is_word or type(value) is member else _MISFIT


def _takes(section: type, value: Mapping[str, Json]) -> bool:
    """Whether a nested section may be this dataclass: it takes the `name`, where it has one."""
    kind = field_types(section).get("name")
    return get_origin(kind) is not Literal or value.get("name") in get_args(kind)


def _words_of(members: tuple[object, ...]) -> list[str]:
    return [w for m in members if get_origin(m) is Literal for w in get_args(m)]
