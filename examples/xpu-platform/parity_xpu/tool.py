"""`xpu-smi`, the tool of Intel's GPU driver: asked with a deadline, read into plain values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parity.platforms import smi

NAME = "xpu-smi"
DEADLINE_S = 10.0
FIND = smi.Tool(
    name=NAME,
    vendor="intel",
    arguments=("discovery", "-j"),
    folders=("/usr/bin", "/usr/local/bin"),
    roots=(),
    read=lambda text: None,  # Parity itself doesn't read this tool; `discovery` does
)


@dataclass(frozen=True)
class Card:
    """One GPU as the tool lists it."""

    index: int
    name: str | None
    uuid: str | None
    bus: str | None


@dataclass(frozen=True)
class Answer:
    """What the tool said: `value` is None where it gave no JSON object, and `problem` says why."""

    value: Mapping[str, object] | None
    problem: str | None = None


def ask(*arguments: str, environment: Mapping[str, str] | None = None) -> Answer | None:
    """The JSON that the tool prints; None where it isn't installed. Never raises."""
    path = smi.find(FIND, environment)
    if path is None:
        return None
    ran = smi.run([str(path), *arguments], deadline_s=DEADLINE_S, environment=environment)
    if ran.status != "ok":
        return Answer(None, ran.reason)
    try:
        value = json.loads(ran.text)
    except (ValueError, RecursionError):
        return Answer(None, f"{NAME} printed no JSON")
    return Answer(value) if isinstance(value, dict) else Answer(None, f"{NAME} printed no object")


def cards(answer: Answer) -> tuple[Card, ...] | None:
    """The GPUs of `xpu-smi discovery -j`; None where they aren't known."""
    if answer.value is None:
        return None
    found: list[Card] = []
    for entry in as_list(answer.value.get("device_list")):
        index = entry.get("device_id")
        if entry.get("device_type", "GPU") != "GPU" or not isinstance(index, int):
            continue
        name, uuid, bus = (
            value if isinstance(value := entry.get(key), str) else None
            for key in ("device_name", "uuid", "pci_bdf_address")
        )
        found.append(Card(index, name, uuid, bus))
    return tuple(sorted(found, key=lambda card: card.index))


@dataclass(frozen=True)
class Stats:
    """The newest value of each metric of `xpu-smi stats -d N -j`."""

    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Answer) -> "Stats":
        """No metric at all where the tool gave no answer."""
        values = {} if answer.value is None else answer.value
        return cls(
            {
                str(entry.get("metrics_type")): value
                for entry in as_list(values.get("device_level"))
                if isinstance(value := entry.get("value"), int | float)
            }
        )


def as_list(value: object) -> Sequence[Mapping[str, object]]:
    """The objects of a JSON list; nothing of anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
