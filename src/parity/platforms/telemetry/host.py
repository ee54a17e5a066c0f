"""Readings of the host's CPU through psutil: one device, the whole machine.

Utilisation is a difference of two moments, so the first reading has none. Temperature is there
where the kernel has a sensor driver; power, ECC and throttling are left to the machine's own
monitoring.
"""

import time
from collections.abc import Callable

from parity.platforms.telemetry.telemetry import (
    Asked,
    Identity,
    Reading,
    Snapshot,
    Telemetry,
    celsius,
    share,
)

MIN_SPAN_S = 0.1  # the kernel counts CPU time in ticks of 10 ms
CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class HostTelemetry(Telemetry):
    """Reads the machine that this process runs on; a container's limits aren't seen."""

    source = "psutil"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._begun: float | None = None  # of the span that utilisation is measured over

    def read(self) -> Snapshot:
        """One reading: the host."""
        import psutil

        asked = Asked((psutil.Error, NotImplementedError))
        asked.lack("psutil doesn't say", "power_w", "ecc_corrected", "ecc_uncorrected", "throttle")
        memory = asked.ask("memory_total_bytes", psutil.virtual_memory)
        if memory is None:
            asked.lack(asked.missing["memory_total_bytes"], "memory_used_bytes")
        reading = Reading(
            identity=Identity(key="host", index=0, kind="device"),
            utilization=asked.ask(
                "utilization", self._utilization, "it is known from the second reading on"
            ),
            memory_used_bytes=None if memory is None else memory.total - memory.available,
            memory_total_bytes=None if memory is None else memory.total,
            temperature_c=asked.ask("temperature_c", _temperature, "the kernel shows no sensor"),
            missing=asked.missing,
        )
        return Snapshot((reading,))

    def _utilization(self) -> float | None:
        import psutil

        now = self._clock()
        if self._begun is not None and now - self._begun < MIN_SPAN_S:
            return None
        percent = psutil.cpu_percent(interval=None)
        is_first = self._begun is None
        self._begun = now
        return None if is_first else share(percent)


def _temperature() -> float | None:
    """The hottest core; None without a sensor."""
    import psutil

    sensors = psutil.sensors_temperatures()
    found = [each.current for name in CPU_SENSORS for each in sensors.get(name, ())]
    return celsius(max(found)) if found else None
