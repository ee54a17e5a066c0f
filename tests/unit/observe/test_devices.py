"""The metrics of a run's devices: of its own devices only, and absent where unknown."""

import logging
import time

import pytest

from parity.observe.devices import DeviceMetrics, device_metrics
from parity.observe.names import check
from parity.platforms.telemetry.host import HostTelemetry
from parity.platforms.telemetry.telemetry import Identity, Reading, Snapshot, Telemetry


def reading(index: int, **fields) -> Reading:
    identity = Identity(key=fields.pop("key", f"GPU-{index}"), index=index)
    return Reading(identity=identity, **fields)


FULL = {
    "utilization": 0.5,
    "memory_used_bytes": 10,
    "memory_total_bytes": 40,
    "power_w": 300.0,
    "temperature_c": 60.0,
    "ecc_uncorrected": 1,
    "throttle": (),
}
EMPTY = {"throttle": ("power cap",), "utilization": 1.0}
SNAPSHOT = Snapshot((reading(0, **FULL), reading(1, **EMPTY), reading(2)))


def test_every_field_is_one_number_over_the_devices_that_say_it():
    found = device_metrics(SNAPSHOT, None)
    assert found == {
        "device/utilization": 0.75,
        "device/memory_used_bytes": 10,
        "device/memory_used_share": 0.25,
        "device/power_w": 300.0,
        "device/temperature_c": 60.0,
        "device/ecc_uncorrected": 1,
        "device/throttled_share": 0.5,
    }
    check(found)


def test_what_no_device_says_is_absent_and_not_zero():
    assert device_metrics(SNAPSHOT, [2]) == {}
    assert device_metrics(SNAPSHOT, [1]) == {
        "device/utilization": 1.0,
        "device/throttled_share": 1.0,
    }
    odd = Snapshot((reading(0, memory_used_bytes=1, memory_total_bytes=0),))
    assert device_metrics(odd, None) == {"device/memory_used_bytes": 1}


@pytest.mark.parametrize(
    ("devices", "power_w"),
    [([0], 1.0), ([1], 2.0), ([0, 1], 1.5), (["MIG-b"], 3.0), (["GPU-1"], 2.0), ([], None)],
)
def test_devices_of_others_do_not_count(devices, power_w):
    slices = (reading(2, key="MIG-a", power_w=9.0), reading(2, key="MIG-b7", power_w=3.0))
    snapshot = Snapshot((reading(0, power_w=1.0), reading(1, power_w=2.0), *slices))
    assert device_metrics(snapshot, devices).get("device/power_w") == power_w


def test_a_run_takes_what_was_read_last_and_reads_no_more_after_it():
    with DeviceMetrics(HostTelemetry(), (0,), interval_s=0.15) as metrics:
        end = time.monotonic() + 20
        while "device/utilization" not in (found := metrics.latest()):
            assert time.monotonic() < end, found
            time.sleep(0.02)
    assert 0 <= found["device/utilization"] <= 1
    assert 0 < found["device/memory_used_share"] < 1
    assert "device/power_w" not in found
    check(found)


def test_a_source_without_readings_is_told_once_and_gives_nothing(caplog):
    class Silent(Telemetry):
        source = "test"

        def read(self) -> Snapshot:
            return Snapshot((), "the library isn't there")

    caplog.set_level(logging.INFO, logger="parity.observe.devices")
    with DeviceMetrics(Silent(), (0,)) as metrics:
        end = time.monotonic() + 20
        while "library isn't there" not in caplog.text:
            assert time.monotonic() < end
            assert metrics.latest() == {}
        assert metrics.latest() == metrics.latest() == {}
    assert caplog.text.count("library isn't there") == 1
