"""The readiness probe of Parity's platforms: their telemetry, seen through the visible devices.

Loads the platform that [backends.NAME] of ci.toml names; loads no torch. A sick driver may block
a reading for minutes, so each has a deadline.
"""

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import cast

from parity.ci.run.readiness import Device, ReadinessError
from parity.platforms import PLATFORMS
from parity.platforms.facts import SmiDevice
from parity.platforms.platform import Platform
from parity.platforms.telemetry.telemetry import Reading, Snapshot, Telemetry
from parity.platforms.visibility.compose import Visibility, compose

READ_TIMEOUT_S = 60.0


class PlatformProbe:
    """Implements `Probe` for one platform in one environment."""

    def __init__(
        self,
        platform: type[Platform],
        telemetry: Telemetry,
        environment: Mapping[str, str],
        *,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._platform = platform
        self._telemetry = telemetry
        self._environment = environment
        self._timeout_s = timeout_s

    def devices(self) -> list[Device]:
        """The visible devices, in the order in which this process counts them."""
        by_id = dict(enumerate(self._readings()))
        visible = self._visibility(by_id).devices
        return [
            _device(index, by_id[number])
            for index, number in enumerate(by_id if visible is None else visible)
            if isinstance(number, int) and number in by_id
        ]

    def variables(self, indices: Sequence[int]) -> Mapping[str, str]:
        """What shows a test these devices alone."""
        by_id = dict(enumerate(self._readings()))
        return self._visibility(by_id).child_variables(sorted(indices))

    def _visibility(self, readings: Mapping[int, Reading]) -> Visibility:
        rules = self._platform.visibility
        if rules is None:
            raise ReadinessError(
                f"the platform {self._platform.name} has no devices to choose from; suites on it"
                " have devices = 0."
            )
        physical = [SmiDevice(number, r.identity.key) for number, r in readings.items()]
        found = compose(rules, self._environment, physical)
        if found.errors:
            raise ReadinessError(found.errors[0])
        return found

    def _readings(self) -> list[Reading]:
        """Whole cards and partitions; what is measured once for a cut card isn't a device."""
        snapshot = self._read()
        if snapshot.problem is not None:
            raise ReadinessError(
                f"{self._telemetry.source} can't tell its devices: {snapshot.problem}"
            )
        return [r for r in snapshot.readings if r.identity.kind != "board"]

    def _read(self) -> Snapshot:
        answers: queue.Queue[Snapshot] = queue.Queue()
        thread = threading.Thread(
            target=lambda: answers.put(self._telemetry.read()), name="readiness", daemon=True
        )
        thread.start()
        try:
            return answers.get(timeout=self._timeout_s)
        except queue.Empty:
            raise ReadinessError(
                f"{self._telemetry.source} hasn't answered for {self._timeout_s:.0f} s; a device or"
                " its driver hangs, and the machine needs a look."
            ) from None


def probe_of(platform: str, environment: Mapping[str, str]) -> PlatformProbe:
    """The probe of a platform by name; raises ConfigError for an unknown one."""
    found = cast("type[Platform]", PLATFORMS.load(platform))
    return PlatformProbe(found, found().telemetry(), environment)


def _device(index: int, reading: Reading) -> Device:
    return Device(
        index=index,
        key=reading.identity.key,
        used_bytes=reading.memory_used_bytes,
        total_bytes=reading.memory_total_bytes,
        holders=None,  # telemetry doesn't say: what others use shows in the memory
    )
