"""What this run's devices say about themselves, as the metrics `device/*` of a step.

Read through `platforms/telemetry/monitor.py`, so a step never waits for a device: it takes what
was read last, at most three intervals ago. Invariant: what isn't known is absent, never 0, and
devices of the machine that this run doesn't use don't count.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from parity.platforms.telemetry.monitor import Monitor
from parity.platforms.telemetry.telemetry import Reading, Snapshot, Telemetry

log = logging.getLogger(__name__)
INTERVAL_S = 5.0  # between two readings; one costs milliseconds, npu-smi up to a second
Devices = Sequence[int | str]  # physical ids, as `Decision.devices` has them


class DeviceMetrics:
    """Reads telemetry from `with` on; `latest` is what a step reports."""

    def __init__(
        self, telemetry: Telemetry, devices: Devices | None, *, interval_s: float = INTERVAL_S
    ) -> None:
        """`devices` are those of this run; None: not known, so that all of the machine count."""
        self._monitor = Monitor(telemetry, interval_s=interval_s)
        self._devices = devices
        self._told: str | None = None

    def __enter__(self) -> Self:
        """Begin to read, in a thread that keeps no process from ending."""
        self._monitor.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop to read; a reading that hangs in a driver is left behind."""
        self._monitor.stop()

    def latest(self) -> dict[str, float]:
        """The metrics of the newest reading, at once; {} without one, and the reason logged."""
        snapshot = self._monitor.latest()
        if snapshot.problem is not None and snapshot.problem != self._told:
            log.info("event=no_telemetry reason=%s", snapshot.problem)
        self._told = snapshot.problem
        return device_metrics(snapshot, self._devices)


def device_metrics(snapshot: Snapshot, devices: Devices | None) -> dict[str, float]:
    """The metrics of these devices in one snapshot; a field that no device gives is absent."""
    readings = [each for each in snapshot.readings if devices is None or _is_one_of(each, devices)]
    found = {
        "device/utilization": _of(readings, lambda r: r.utilization, _mean),
        "device/memory_used_bytes": _of(readings, lambda r: r.memory_used_bytes, max),
        "device/memory_used_share": _of(readings, _memory_share, _mean),
        "device/power_w": _of(readings, lambda r: r.power_w, _mean),
        "device/temperature_c": _of(readings, lambda r: r.temperature_c, max),
        "device/ecc_uncorrected": _of(readings, lambda r: r.ecc_uncorrected, sum),
        "device/throttled_share": _of(
            readings, lambda r: None if r.throttle is None else float(bool(r.throttle)), _mean
        ),
    }
    return {name: value for name, value in found.items() if value is not None}


def _is_one_of(reading: Reading, devices: Devices) -> bool:
    """A number means a whole card with its parts; a UUID (its beginning) one card or one part."""
    identity = reading.identity
    return any(
        identity.index == each if isinstance(each, int) else identity.key.startswith(each)
        for each in devices
    )


def _memory_share(reading: Reading) -> float | None:
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    return None if used is None or not total else used / total


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _of(
    readings: Iterable[Reading],
    field: Callable[[Reading], float | None],
    reduce: Callable[[list[float]], float],
) -> float | None:
    """One number for the devices that say it; None where none does."""
    values = [float(value) for each in readings if (value := field(each)) is not None]
    return reduce(values) if values else None
