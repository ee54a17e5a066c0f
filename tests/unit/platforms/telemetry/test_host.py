"""The host is read through psutil; the first reading knows no utilisation."""

import psutil
import pytest

from parity.platforms.telemetry import host
from parity.platforms.telemetry.host import HostTelemetry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_reading_has_no_utilisation_and_the_second_has():
    clock = Clock()
    telemetry = HostTelemetry(clock)
    (first,) = telemetry.read().readings
    assert first.utilization is None
    assert "second reading" in first.missing["utilization"]
    clock.now = host.MIN_SPAN_S / 2
    assert telemetry.read().readings[0].utilization is None
    clock.now = host.MIN_SPAN_S * 2
    while sum(psutil.cpu_times()) == sum(psutil.cpu_times()):  # until the kernel counts a tick
        continue
    utilization = telemetry.read().readings[0].utilization
    assert utilization is not None
    assert 0.0 <= utilization <= 1.0


def test_memory_is_the_machines():
    (reading,) = HostTelemetry().read().readings
    assert reading.memory_total_bytes == psutil.virtual_memory().total
    assert 0 < (reading.memory_used_bytes or 0) < psutil.virtual_memory().total


def test_power_ecc_and_throttling_are_unknown_and_not_zero():
    (reading,) = HostTelemetry().read().readings
    assert (reading.power_w, reading.ecc_corrected, reading.throttle) == (None, None, None)
    assert {"power_w", "ecc_corrected", "throttle"} <= set(reading.missing)


def test_the_hottest_core_is_shown_and_a_machine_without_sensors_shows_none(
    monkeypatch: pytest.MonkeyPatch,
):
    sensor = type("Sensor", (), {"current": 50.0})
    hot = type("Sensor", (), {"current": 71.0})
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: {"coretemp": [sensor, hot]})
    assert HostTelemetry().read().readings[0].temperature_c == 71.0
    monkeypatch.setattr(psutil, "sensors_temperatures", dict)
    (reading,) = HostTelemetry().read().readings
    assert reading.temperature_c is None
    assert reading.missing["temperature_c"] == "the kernel shows no sensor"


def test_memory_that_cannot_be_read_takes_nothing_else_along(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict)
    (reading,) = HostTelemetry().read().readings
    assert {"memory_used_bytes", "memory_total_bytes"} <= set(reading.missing)
