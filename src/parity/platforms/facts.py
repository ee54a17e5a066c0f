"""What detection may look at, as plain data.

`collect.py` gathers them on this machine, `parity doctor --facts FILE` reads them from JSON, and
`detect.py` decides from nothing else. Invariants: unknown is None, never 0; nothing in here was
learned by initialising a device runtime; a device node or a folder is recorded, and is never
taken for a device.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, Self, cast, get_args

from parity.errors import ConfigError
from parity.registry import known
from parity.types import Json

SmiStatus = Literal["ok", "absent", "timeout", "failed", "garbage"]
MAX_FILE_BYTES = 16 * 2**20  # of a facts file
MAX_DEVICES = 1024  # of one vendor in one machine: far beyond 16 cards of 8 partitions
MAX_SHOWN = 120  # characters of a wrong value


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What the installed torch was built for; None: not for that."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None


@dataclass(frozen=True, slots=True)
class SmiDevice:
    """One device as its vendor's tool lists it."""

    index: int  # physical id: what the outermost visibility variable counts
    uuid: str | None = None  # as the tool prints it: GPU-…, MIG-…
    name: str | None = None  # model, as the tool prints it


@dataclass(frozen=True, slots=True)
class SmiProbe:
    """What became of running one vendor tool (`smi.py`)."""

    tool: str  # nvidia-smi, rocm-smi, amd-smi, npu-smi
    status: SmiStatus
    path: str | None = None  # None: neither on PATH nor in the well-known folders
    devices: tuple[SmiDevice, ...] | None = None  # None: not learned; () means none are there
    version: str | None = None  # of the driver or of the vendor's software, as the tool says it
    detail: str | None = None  # why it isn't ok: exit status, first line of its error


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a decision is made from."""

    torch: TorchBuild | None = None  # None: torch isn't installed
    plugins: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Installed packages that bring a torch backend (torch_npu), with their versions."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables with a prefix that Parity knows; see `collect.py`."""
    smi: tuple[SmiProbe, ...] = ()
    """One probe per vendor tool; a tool that wasn't asked isn't here."""
    device_counts: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """Devices by source other than a tool (`nvidia-driver`, `kfd`); None: it couldn't be read."""
    device_nodes: tuple[str, ...] = ()
    """Nodes such as /dev/kfd: reported, never taken as devices."""
    versions: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Of the outside stack: ray, cann, rocm, nvidia-driver, …; None: there, but unreadable."""

    def variable(self, name: str) -> str | None:
        """The value of an environment variable, without spaces around it; None where unset."""
        value = self.environment.get(name)
        return None if value is None else value.strip()

    def probe(self, tool: str) -> SmiProbe | None:
        """What the tool said; None where it wasn't asked."""
        return next((probe for probe in self.smi if probe.tool == tool), None)

    def to_json(self) -> dict[str, Json]:
        """Plain data with sorted keys; `from_json` reads it back."""
        return {name: _plain(getattr(self, name)) for name in sorted(FACT_NAMES)}

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Facts from plain data; what isn't named is unknown.

        Raises ConfigError, naming the place, for an unknown key or a value of another type.
        """
        facts = _object(value, "facts", FACT_NAMES)
        torch = facts.get("torch")
        return cls(
            torch=None if torch is None else _torch(torch),
            plugins=_texts(facts.get("plugins"), "facts.plugins"),
            environment={
                name: _required(text, f"facts.environment.{name}")
                for name, text in _texts(facts.get("environment"), "facts.environment").items()
            },
            smi=_probes(facts.get("smi")),
            device_counts={
                name: _count(count, f"facts.device_counts.{name}")
                for name, count in _mapping(
                    facts.get("device_counts"), "facts.device_counts"
                ).items()
            },
            device_nodes=tuple(
                sorted(
                    _required(each, f"facts.device_nodes[{index}]")
                    for index, each in enumerate(
                        _list(facts.get("device_nodes"), "facts.device_nodes")
                    )
                )
            ),
            versions=_texts(facts.get("versions"), "facts.versions"),
        )


FACT_NAMES = tuple(each.name for each in fields(Facts))


def read_facts(path: Path) -> Facts:
    """Facts from a JSON file (`parity doctor --facts FILE`).

    Raises ConfigError where the file can't be read, isn't JSON, or holds something else.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError(f"the facts file {path} is longer than {MAX_FILE_BYTES} bytes.")
        value = cast("Json", json.loads(text, object_pairs_hook=_without_twins))
        return Facts.from_json(value)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the facts file {path} isn't JSON: {error}.") from error
    except (OSError, ValueError, RecursionError) as error:  # too deep, a number of 5,000 digits
        raise ConfigError(f"the facts file {path} can't be read: {error}.") from error


def _without_twins(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """An object of JSON; a key that stands twice would make the order matter."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the facts file has the key {_shown(twice)} twice; remove one of them.")
    return found


def _plain(value: object) -> Json:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {name: _plain(each) for name, each in sorted(items)}
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[object, ...]", value)]
    if isinstance(value, TorchBuild | SmiDevice | SmiProbe):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    assert value is None or isinstance(value, str | int | float), f"{value!r} isn't plain"
    return value


def _torch(value: Json) -> TorchBuild:
    names = tuple(each.name for each in fields(TorchBuild))
    texts = _texts(_object(value, "facts.torch", names), "facts.torch")
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise ConfigError(f"facts.torch.{name} is empty; give a version, or null for none.")
    return TorchBuild(
        version=_required(texts.get("version"), "facts.torch.version"),
        cuda=texts.get("cuda"),
        hip=texts.get("hip"),
        xpu=texts.get("xpu"),
    )


def _probes(value: Json) -> tuple[SmiProbe, ...]:
    """One per tool, sorted: which of two answers came first mustn't matter."""
    found: dict[str, SmiProbe] = {}
    for index, each in enumerate(_list(value, "facts.smi")):
        probe = _probe(each, f"facts.smi[{index}]")
        if probe.tool in found:
            raise ConfigError(f"facts.smi has {_shown(probe.tool)} twice; remove one of them.")
        found[probe.tool] = probe
    return tuple(found[tool] for tool in sorted(found))


def _probe(value: Json, place: str) -> SmiProbe:
    probe = _object(value, place, tuple(each.name for each in fields(SmiProbe)))
    status = _required(probe.get("status"), f"{place}.status")
    if status not in get_args(SmiStatus):
        raise ConfigError(
            f"{place}.status is {_shown(status)}; {known(status, get_args(SmiStatus))}"
        )
    devices = probe.get("devices")
    return SmiProbe(
        tool=_required(probe.get("tool"), f"{place}.tool"),
        status=cast("SmiStatus", status),
        path=_text(probe.get("path"), f"{place}.path"),
        devices=None
        if devices is None
        else tuple(
            _device(each, f"{place}.devices[{index}]")
            for index, each in enumerate(_list(devices, f"{place}.devices", MAX_DEVICES))
        ),
        version=_text(probe.get("version"), f"{place}.version"),
        detail=_text(probe.get("detail"), f"{place}.detail"),
    )


def _device(value: Json, place: str) -> SmiDevice:
    device = _object(value, place, tuple(each.name for each in fields(SmiDevice)))
    index = _count(device.get("index"), f"{place}.index")
    if index is None:
        raise ConfigError(f"{place}.index is missing; give the number of the device.")
    return SmiDevice(
        index=index,
        uuid=_text(device.get("uuid"), f"{place}.uuid"),
        name=_text(device.get("name"), f"{place}.name"),
    )


def _mapping(value: Json, place: str) -> Mapping[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} is {_shown(value)}; it must be an object.")
    return value


def _object(value: Json, place: str, names: tuple[str, ...]) -> Mapping[str, Json]:
    found = _mapping(value, place)
    for name in found:
        if name not in names:
            raise ConfigError(f"{place} has no {_shown(name)}; {known(name, names)}")
    return found


def _list(value: Json, place: str, most: int | None = None) -> list[Json]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{place} is {_shown(value)}; it must be a list.")
    if most is not None and len(value) > most:
        raise ConfigError(f"{place} has {len(value)} entries; at most {most} are possible.")
    return value


def _text(value: Json, place: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{place} is {_shown(value)}; it must be a text or null.")
    return value


def _required(value: Json, place: str) -> str:
    text = _text(value, place)
    if text is None:
        raise ConfigError(f"{place} is missing; it must be a text.")
    return text


def _texts(value: Json | Mapping[str, Json], place: str) -> dict[str, str | None]:
    return {
        name: _text(text, f"{place}.{name}")
        for name, text in _mapping(cast("Json", value), place).items()
    }


def _count(value: Json, place: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DEVICES:
        raise ConfigError(
            f"{place} is {_shown(value)}; it must be a whole number from 0 to {MAX_DEVICES}, or"
            " null."
        )
    return value


def _shown(value: object) -> str:
    """The beginning of a wrong value: a file may hold megabytes of it."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
