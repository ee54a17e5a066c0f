"""Whether the devices of a machine can be used: their number, free memory and foreign holders.

A tool that answers proves nothing; what counts is what it measured. Unknown is not zero: memory
that can't be read fails a suite that asks for an amount of it. `telemetry.py` implements `Probe`
with Parity's platforms.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from parity.errors import ParityError

GIB, MIB = 1024**3, 1024**2
_POLL_S = 0.5


class ReadinessError(ParityError):
    """The machine isn't fit to run the shard."""


@dataclass(frozen=True, slots=True)
class Device:
    """One visible device as it is now; None is unknown."""

    index: int  # as this process counts them
    key: str  # the same in every process and container of the host: a PCI address or UUID
    used_bytes: int | None
    total_bytes: int | None
    holders: tuple[str, ...] | None  # processes that use it

    @property
    def free_bytes(self) -> int | None:
        """None where either is unknown."""
        if self.used_bytes is None or self.total_bytes is None:
            return None
        return self.total_bytes - self.used_bytes


class Probe(Protocol):
    """One vendor's view of the machine."""

    def devices(self) -> Sequence[Device]:
        """Every device visible to this process, now.

        Raises ReadinessError where they can't be asked.
        """
        ...

    def variables(self, indices: Sequence[int]) -> Mapping[str, str]:
        """The environment variables under which a test sees these devices only."""
        ...


@dataclass(frozen=True, slots=True)
class Need:
    """What a suite asks of a machine."""

    count: int
    min_free_gib: float | None  # per device
    max_used_mib: float | None = None  # more than this in use means that somebody else is there


def problem(device: Device, need: Need) -> str | None:
    """Why a device can't be used, or None."""
    if device.holders:
        return f"in use by {', '.join(device.holders)}"
    used, free = device.used_bytes, device.free_bytes
    if used is None and device.holders is None:
        return "neither its memory nor its users can be read"
    if need.max_used_mib is not None and used is not None and used > need.max_used_mib * MIB:
        # A process in another container is seen by nothing but what it holds.
        return f"{used / MIB:.0f} MiB are in use by somebody, and {need.max_used_mib:.4g} may be"
    if need.min_free_gib is None or (free is not None and free >= need.min_free_gib * GIB):
        return None
    found = "its free memory can't be read" if free is None else f"{free / GIB:.1f} GiB are free"
    return f"{found}, and {need.min_free_gib:.4g} GiB are needed"


def candidates(probe: Probe, need: Need) -> list[Device]:
    """Every visible device, those that can be used now first.

    Raises ReadinessError where there are fewer than are needed, usable or not.
    """
    devices = list(probe.devices())
    if len(devices) < need.count:
        raise ReadinessError(_unready(devices, need))
    return sorted(devices, key=lambda device: problem(device, need) is not None)


def wait_ready(
    probe: Probe,
    keys: Sequence[str],
    need: Need,
    *,
    timeout_s: float,
    pause: Callable[[float], None] = time.sleep,
) -> list[Device]:
    """The leased devices, in the order of `keys`, once all of them can be used.

    Raises ReadinessError, which says of each device what is wrong.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        by_key = {device.key: device for device in probe.devices()}
        devices = [by_key[key] for key in keys if key in by_key]
        if len(devices) == len(keys) and not any(problem(device, need) for device in devices):
            return devices
        if time.monotonic() >= deadline:
            raise ReadinessError(_unready(devices, need))
        pause(_POLL_S)


class Baseline:
    """The memory in use before the first test, to which a device must return after each."""

    def __init__(self, probe: Probe, devices: Sequence[Device], *, tolerance_mib: float) -> None:
        self._probe = probe
        self._used = {d.key: d.used_bytes for d in devices if d.used_bytes is not None}
        self._tolerance_bytes = tolerance_mib * MIB

    def wait(self, *, timeout_s: float, pause: Callable[[float], None] = time.sleep) -> str | None:
        """None once every device is back; what is in use, where one isn't by the timeout."""
        deadline = time.monotonic() + timeout_s
        while (excess := self._excess()) is not None and time.monotonic() < deadline:
            pause(_POLL_S)
        return excess

    def _excess(self) -> str | None:
        for device in self._probe.devices() if self._used else ():
            before = self._used.get(device.key)
            if before is None:
                continue
            if device.used_bytes is None:
                return f"the memory of device {device.index} can't be read any more"
            if device.used_bytes > before + self._tolerance_bytes:
                extra = (device.used_bytes - before) / MIB
                return f"device {device.index} holds {extra:.0f} MiB more than before the test"
        return None


def _unready(devices: Sequence[Device], need: Need) -> str:
    told = [f"device {d.index}: {problem(d, need) or 'good'}" for d in devices]
    return (
        f"{need.count} usable devices are needed, and {len(devices)} were found"
        f" ({'; '.join(told) or 'none is visible'}); free them, or correct devices and"
        " min_free_memory_gib of the suite, or max_used_mib in [run]."
    )
