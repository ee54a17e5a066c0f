"""From a reward section of the run file to the reward that it names.

Used by the grader process, which receives the section as plain data, and by `sum.py` for
its parts. A name that ships with Parity has a config dataclass; one that comes from another
package (entry point `parity.rewards`) receives the section itself, which it must check.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import get_args, get_origin

from parity.errors import ConfigError
from parity.registry import known
from parity.rewards import REWARDS
from parity.rewards.config import RewardConfig
from parity.rewards.reward import Reward
from parity.types import Json

_CONFIGS: dict[str, type[RewardConfig]] = {config.name: config for config in get_args(RewardConfig)}
_WORDS: dict[object, str] = {
    bool: "true or false",
    float: "a number",
    str: "text",
    type(None): "null",
    tuple: "a list",
    Mapping: "a section",
}


def build(config: RewardConfig | Mapping[str, Json]) -> Reward:
    """The reward that `config` names; a mapping must have a `name`.

    Raises ConfigError where the section can't be used and UnsupportedError where a package
    that the reward needs isn't installed.
    """
    section = parse(config) if isinstance(config, Mapping) else config
    name = section["name"] if isinstance(section, Mapping) else section.name
    reward_class = REWARDS.load(str(name))
    if not isinstance(reward_class, type) or not issubclass(reward_class, Reward):
        raise ConfigError(
            f"reward.name={name} leads to {reward_class!r}; it must be a subclass of"
            " parity.rewards.reward.Reward."
        )
    return reward_class(section)  # pyright: ignore[reportCallIssue]


def parse(section: Mapping[str, Json]) -> RewardConfig | Mapping[str, Json]:
    """The config dataclass of a section, or the section itself for a third-party name."""
    name = section.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"name is {name!r}; {known('', REWARDS.names())}")
    config_class = _CONFIGS.get(name)
    if config_class is None:
        if name not in REWARDS.names():
            raise ConfigError(f"name is {name!r}; {known(name, REWARDS.names())}")
        return section
    hints = {field.name: field.type for field in fields(config_class)}
    for key in section:
        if key not in hints:
            raise ConfigError(f"reward {name} has no key {key!r}; {known(key, hints)}")
    values = {key: _fitted(key, value, hints[key]) for key, value in section.items()}
    return config_class(**values)  # pyright: ignore[reportArgumentType]


def plain(config: RewardConfig | Mapping[str, Json]) -> dict[str, Json]:
    """A section as JSON-like data, the inverse of `parse`."""
    if isinstance(config, Mapping):
        return {key: _plain(value) for key, value in config.items()}
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config)}


def _plain(value: object) -> Json:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str), f"{value!r} isn't plain"
    return value


def _fitted(key: str, value: Json, hint: object) -> object:
    """`value` as the field type `hint` wants it; a whole number is a number too."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    origin = get_origin(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(value)
    if origin is Mapping and isinstance(value, Mapping):
        return value
    allowed = get_args(hint) or (hint,)
    if type(value) in allowed or value in allowed:  # the second: a Literal
        return value
    kinds = (origin,) if origin in _WORDS else allowed
    words = " or ".join(_WORDS.get(kind, repr(kind)) for kind in kinds)
    raise ConfigError(f"{key} is {value!r}; it must be {words}.")
