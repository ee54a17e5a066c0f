"""The Ascend platform, against a stand-in for torch_npu: no NPU is needed."""

import sys
from types import SimpleNamespace

import pytest
import torch

from parity.errors import UnsupportedError
from parity.platforms.facts import Facts, SmiProbe
from parity.platforms.npu import NpuPlatform


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch):
    """`torch.npu` with two devices."""
    calls: list[tuple] = []

    def record(name):
        return lambda *given: calls.append((name, *given))

    module = SimpleNamespace(
        calls=calls,
        memory=SimpleNamespace(),
        is_available=lambda: True,
        device_count=lambda: 2,
        current_device=lambda: 1,
        set_device=record("set_device"),
        synchronize=record("synchronize"),
        manual_seed_all=record("manual_seed_all"),
        empty_cache=record("empty_cache"),
        mem_get_info=lambda device: (3, 4),
        get_device_name=lambda device: "Ascend910B3",
    )
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace())
    monkeypatch.setattr(torch, "npu", module, raising=False)
    # "npu" is no device type of this torch until the package renames its private one.
    monkeypatch.setattr(torch, "device", lambda text: f"device {text}")
    return module


def test_device_calls_go_to_the_module_that_the_package_adds(npu):
    platform = NpuPlatform()
    platform.require_usable()
    assert platform.module is npu
    assert (platform.device_count(), platform.current_device()) == (2, 1)
    assert platform.device(1) == "device npu:1"
    with pytest.raises(UnsupportedError, match="device 2 was asked, and 2 are visible"):
        platform.device(2)
    platform.set_device(0)
    platform.synchronize()
    platform.synchronize(1)
    platform.seed(5)
    platform.empty_cache()
    assert npu.calls == [
        ("set_device", "device npu:0"),
        ("synchronize",),
        ("synchronize", 1),
        ("manual_seed_all", 5),
        ("empty_cache",),
    ]
    assert platform.memory(0).free_bytes == 3
    assert platform.device_name() == "Ascend910B3"
    assert platform.capability() is None
    assert platform.peak_flops(platform.device_name(), "bfloat16") == 313e12


def test_without_the_package_or_a_device_the_way_out_is_said(npu, monkeypatch):
    npu.is_available = lambda: False
    with pytest.raises(UnsupportedError, match="no usable NPU in this process"):
        NpuPlatform().require_usable()
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(UnsupportedError, match="install the package torch_npu"):
        NpuPlatform().require_usable()


def test_allocator_settings_need_a_newer_package(npu):
    with pytest.raises(UnsupportedError, match="PYTORCH_NPU_ALLOC_CONF before the start"):
        NpuPlatform().set_allocator("expandable_segments:True")
    npu.memory._set_allocator_settings = npu.calls.append
    NpuPlatform().set_allocator("expandable_segments:True")
    assert npu.calls == ["expandable_segments:True"]


@pytest.mark.parametrize(
    ("name", "has_fp8"),
    [("Ascend910B3", False), ("Ascend910_9382", False), ("Ascend910A", False), ("Ascend950", None)],
)
def test_fp8_is_unknown_on_cards_that_are_not_known(npu, name, has_fp8):
    npu.get_device_name = lambda device: name
    assert NpuPlatform().has_fp8() is has_fp8


@pytest.mark.parametrize(
    ("smi", "cann", "expected"),
    [
        ("25.3.rc1", "8.3.RC1", True),
        ("25.3.0", "8.3.0", True),
        ("25.5.1", "9.0.0", True),
        ("26.0.rc1", "8.5.0.alpha001", True),
        ("25.2.0", "8.3.RC1", False),
        ("25.3.rc1", "8.2.RC1", False),
        ("25.3.t1", "8.3.RC1", False),
        ("25.3.rc1", "8.3.RC1.alpha003", False),
        ("25.2.0", None, False),
        (None, "8.3.RC1", None),
        ("25.3.rc1", None, None),
        ("odd", "8.3.RC1", None),
        (None, None, None),
    ],
)
def test_ipc_is_told_by_two_versions_and_unknown_where_one_is(smi, cann, expected):
    facts = Facts(smi=(SmiProbe("npu-smi", "ok", version=smi),), versions={"cann": cann})
    support = NpuPlatform().ipc_support(facts)
    assert support.is_supported is expected
    assert "npu-smi >= 25.3.rc1 and CANN >= 8.3.rc1" in support.reason or expected
