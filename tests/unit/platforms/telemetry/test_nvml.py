"""NVIDIA GPUs and their MIG slices are read field by field, and none is counted twice."""

import ast
from importlib import import_module
from pathlib import Path

import pytest
from unit.platforms.telemetry.libraries import Gpu, NvmlError, nvml

from parity.platforms.telemetry import nvml as module
from parity.platforms.telemetry.nvml import NvmlTelemetry
from parity.platforms.telemetry.telemetry import FIELDS

REFUSED = NvmlError("Not Supported")


def readings(*gpus: Gpu | Exception, **changes: object):
    snapshot = NvmlTelemetry(nvml(*gpus, **changes)).read()
    assert snapshot.problem is None
    return snapshot.readings


def test_a_whole_gpu_has_every_field():
    (reading,) = readings(Gpu("GPU-a"))
    assert (reading.identity.key, reading.identity.kind) == ("GPU-a", "device")
    assert reading.identity.bus == "00000000:0F:00.0"
    assert reading.utilization == 0.37
    assert reading.memory_used_bytes == 2 * 2**30
    assert reading.memory_total_bytes == 140 * 2**30
    assert (reading.power_w, reading.temperature_c) == (412.5, 61.0)
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (3, 0)
    assert (reading.throttle, reading.missing) == ((), {})


ASKED_AS = {
    "utilization": ("utilization",),
    "memory": ("memory_used_bytes", "memory_total_bytes"),
    "power": ("power_w",),
    "temperature": ("temperature_c",),
    "corrected": ("ecc_corrected",),
    "uncorrected": ("ecc_uncorrected",),
    "throttle": ("throttle",),
}


@pytest.mark.parametrize("question", ASKED_AS)
def test_each_field_degrades_alone_and_says_why(question: str):
    (reading,) = readings(Gpu("GPU-a", **{question: REFUSED}))
    assert reading.missing == dict.fromkeys(ASKED_AS[question], "Not Supported")
    for name in FIELDS:
        assert (getattr(reading, name) is None) == (name in ASKED_AS[question])


def test_a_driver_without_a_function_lacks_that_field_only():
    (reading,) = readings(Gpu("GPU-a"), nvmlDeviceGetPowerUsage=None)
    assert list(reading.missing) == ["power_w"]


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"]
)
def test_an_older_driver_is_asked_by_the_older_name(name: str):
    (reading,) = readings(Gpu("GPU-a"), **{name: None})
    assert not reading.missing


def test_a_marker_of_unknown_is_not_a_figure():
    gpu = Gpu("GPU-a", power=2**32 - 1, temperature=0, corrected=2**64 - 1)
    (reading,) = readings(gpu)
    assert set(reading.missing) == {"power_w", "temperature_c", "ecc_corrected"}
    assert reading.power_w is None


def test_throttle_names_why_and_idle_is_not_throttling():
    (reading,) = readings(Gpu("GPU-a", throttle=1 | 4 | 32))
    assert reading.throttle == ("power_cap", "thermal")


def test_a_gpu_in_mig_mode_is_a_board_with_partitions():
    parts = (Gpu("MIG-x", utilization=REFUSED), None, Gpu("MIG-y", utilization=REFUSED))
    board, first, second, whole = readings(Gpu("GPU-a", parts), Gpu("GPU-b"))
    kinds = [each.identity.kind for each in (board, first, second, whole)]
    assert kinds == ["board", "partition", "partition", "device"]
    assert [each.identity.key for each in (first, second)] == ["MIG-x", "MIG-y"]
    assert {first.identity.board, second.identity.board} == {"GPU-a"}
    assert (board.power_w, first.power_w) == (412.5, None)
    assert (board.memory_used_bytes, first.memory_used_bytes) == (None, 2 * 2**30)
    assert "whole board" in first.missing["power_w"]
    assert first.missing["utilization"] == "Not Supported"


def test_a_lost_gpu_does_not_take_the_others_along():
    lost, sound = readings(NvmlError("GPU is lost"), Gpu("GPU-b"))
    assert lost.missing == {"identity": "GPU is lost"}
    assert lost.power_w is None
    assert sound.identity.key == "GPU-b"


def test_a_library_that_cannot_start_is_a_problem_and_is_tried_again():
    answers = iter([NvmlError("Driver Not Loaded"), None])

    def start() -> None:
        if (error := next(answers)) is not None:
            raise error

    telemetry = NvmlTelemetry(nvml(Gpu("GPU-a"), nvmlInit=start))
    assert telemetry.read().problem == "NVML: Driver Not Loaded"
    assert len(telemetry.read().readings) == 1


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(NvmlTelemetry, "package", "no_such_pynvml")
    snapshot = NvmlTelemetry().read()
    assert snapshot.readings == ()
    assert "parity-rl[nvidia]" in (snapshot.problem or "")


def test_the_real_library_has_every_name_that_is_asked_for():
    real = import_module("pynvml")
    tree = ast.parse(Path(module.__file__).read_text())
    asked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "nvml"
    }
    asked |= set(module.THROTTLE)
    assert len(asked) > 20
    assert not [name for name in sorted(asked) if not hasattr(real, name)]


def test_the_real_library_without_a_driver_is_a_problem_and_no_error():
    snapshot = NvmlTelemetry().read()
    assert snapshot.readings or snapshot.problem
