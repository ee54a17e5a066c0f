"""What was decided from the facts, with its reasons: the value that the driver hands on.

Made by `detect.py: decide`. Invariant: the vendor comes from the build (or from PARITY_PLATFORM)
alone, so that a process without a device has the same one; `is_usable_here` is a second answer.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, Self, cast, get_args

from parity.errors import ConfigError
from parity.registry import known
from parity.types import Json

Source = Literal["build", "variable", "key"]
VARIABLE = "PARITY_DECISION"  # carries the driver's decision to other processes


@dataclass(frozen=True, slots=True)
class Decision:
    """The platform of a run and what this process has of it."""

    platform: str  # name of the platform: cpu, cuda, rocm, npu, …
    vendor: str  # nvidia, amd, huawei, generic, …
    device_type: str  # torch device type
    source: Source  # torch's build, PARITY_PLATFORM, or the key `platform` of the run file
    is_built_for: bool  # whether the torch of this process can drive such devices
    is_usable_here: bool  # whether it has at least one of them
    devices: tuple[int | str, ...] | None
    """Logical index -> physical id (a number, or the UUID that was given); None: not known."""
    reasons: tuple[str, ...]  # sentences, in the order of the thought
    warnings: tuple[str, ...] = ()  # usable, but worth a look
    errors: tuple[str, ...] = ()  # what has to be changed before a run

    def to_json(self) -> dict[str, Json]:
        """Plain data; `from_json` reads it back."""
        return cast("dict[str, Json]", json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Raises ConfigError for anything that `to_json` doesn't write."""
        names = [each.name for each in fields(cls)]
        if not isinstance(value, Mapping):
            raise ConfigError(f"a decision must be an object, and this is {value!r}.")
        for name in value:
            if name not in names:
                raise ConfigError(f"a decision has no {name!r}; {known(name, names)}")
        if missing := [name for name in names if name not in value]:
            raise ConfigError(f"a decision lacks {', '.join(missing)}; it is of another version.")
        source = _text(value, "source")
        if source not in get_args(Source):
            raise ConfigError(f"decision.source is {source!r}; {known(source, get_args(Source))}")
        return cls(
            platform=_text(value, "platform"),
            vendor=_text(value, "vendor"),
            device_type=_text(value, "device_type"),
            source=cast("Source", source),
            is_built_for=_flag(value, "is_built_for"),
            is_usable_here=_flag(value, "is_usable_here"),
            devices=_devices(value["devices"]),
            reasons=_texts(value, "reasons"),
            warnings=_texts(value, "warnings"),
            errors=_texts(value, "errors"),
        )

    def to_variable(self) -> dict[str, str]:
        """The environment variable that hands this decision to another process."""
        return {VARIABLE: json.dumps(self.to_json(), separators=(",", ":"))}


def from_variable(environment: Mapping[str, str]) -> Decision | None:
    """The decision that the driver handed to this process; None where it handed none.

    Raises ConfigError where PARITY_DECISION holds something else.
    """
    text = environment.get(VARIABLE)
    if not text:
        return None
    try:
        return Decision.from_json(cast("Json", json.loads(text)))
    except (ValueError, RecursionError, ConfigError) as error:  # JSON too deep or too long too
        raise ConfigError(
            f"{VARIABLE} can't be read ({error}); it is set by the driver of a run and by nobody"
            " else. Unset it."
        ) from error


def _text(value: Mapping[str, Json], name: str) -> str:
    text = value[name]
    if not isinstance(text, str):
        raise ConfigError(f"decision.{name} is {text!r}; it must be a text.")
    return text


def _flag(value: Mapping[str, Json], name: str) -> bool:
    flag = value[name]
    if not isinstance(flag, bool):
        raise ConfigError(f"decision.{name} is {flag!r}; it must be true or false.")
    return flag


def _texts(value: Mapping[str, Json], name: str) -> tuple[str, ...]:
    found = value[name]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"decision.{name} is {found!r}; it must be a list of texts.")
    return tuple(cast("list[str]", found))


def _devices(value: Json) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    is_list = isinstance(value, list)
    if not is_list or not all(type(each) in (int, str) for each in value):
        raise ConfigError(f"decision.devices is {value!r}; it must be a list of ids, or null.")
    if len(set(map(str, value))) < len(value):
        raise ConfigError(f"decision.devices is {value!r}; it must name every device once.")
    return tuple(cast("list[int | str]", value))
