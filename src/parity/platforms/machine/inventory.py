"""Which devices of one platform a machine has, according to the facts, and who says so.

Used by `detect.py`. Pure; never raises. A node or a folder isn't a device: without a tool or a
driver file that lists devices, they aren't known, which is not the same as none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from parity.platforms.facts import MAX_DEVICES, Facts, SmiDevice, SmiProbe
from parity.platforms.platform import Platform


@dataclass(frozen=True, slots=True)
class Inventory:
    """The physical devices of a platform; None: nobody could say."""

    devices: tuple[SmiDevice, ...] | None
    source: str | None  # who said it
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def take_inventory(kind: type[Platform], facts: Facts) -> Inventory:
    """The best source that has an answer; the others are compared with it."""
    reasons: list[str] = []
    answers: list[tuple[str, tuple[SmiDevice, ...]]] = []
    for tool in kind.smi_tools:
        probe = facts.probe(tool)
        if probe is not None and probe.status == "ok" and probe.devices is not None:
            devices = tuple(sorted(probe.devices, key=lambda device: device.index))
            answers.append((tool, devices))
            reasons.append(f"{tool} lists {count(devices)}")
        else:
            reasons.append(_silence(tool, probe))
    for source in kind.count_sources:
        number = facts.device_counts.get(source)
        if number is not None and number > MAX_DEVICES:
            reasons.append(f"{source} says {number} devices, which no machine has")
        elif number is not None:
            devices = tuple(SmiDevice(index) for index in range(number))
            answers.append((source, devices))
            reasons.append(f"{source} lists {count(devices)}")
        elif source in facts.device_counts:
            reasons.append(f"{source} couldn't be read")
    if not answers:
        return Inventory(None, None, tuple(reasons), ())
    source, devices = answers[0]
    warnings = tuple(
        f"{source} lists {count(devices)} and {other} {len(there)}; {source} is believed."
        for other, there in answers[1:]
        if _cards(there) != _cards(devices)
    )
    return Inventory(devices, source, tuple(reasons), warnings)


def _cards(devices: Sequence[SmiDevice]) -> int:
    """How many cards these are: a tool lists the slices of one, a driver's table the card."""
    return len({device.index for device in devices})


def count(devices: Sequence[object]) -> str:
    """As in `no device`, `1 device` and `8 devices`."""
    return f"{len(devices) or 'no'} device{'' if len(devices) < 2 else 's'}"


def _silence(tool: str, probe: SmiProbe | None) -> str:
    """Why a tool lists nothing."""
    if probe is None:
        return f"{tool} wasn't asked"
    if probe.status == "absent":
        return f"{tool} isn't there"
    why = {
        "timeout": "didn't answer in time",
        "failed": "failed",
        "garbage": "printed no list of devices",
        "ok": "listed nothing",
    }[probe.status]
    return f"{tool} {why}" + (f" ({probe.detail})" if probe.detail else "")
