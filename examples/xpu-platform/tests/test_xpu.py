"""The platform's facts and its reading of xpu-smi, without the hardware."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from parity_xpu import tool
from parity_xpu.platform import XpuPlatform
from parity_xpu.telemetry import XpuTelemetry

from parity.errors import UnsupportedError
from parity.platforms.detect import decide
from parity.platforms.environment import settings
from parity.platforms.facts import Facts, TorchBuild
from parity.platforms.plugins import all_platforms

BUILD = TorchBuild("2.9.1+xpu", xpu="20250201")
CARDS = {
    "device_list": [
        {
            "device_id": index,
            "device_type": "GPU",
            "device_name": "Intel(R) Data Center GPU Max 1550",
            "pci_bdf_address": f"0000:{bus}:00.0",
            "uuid": f"00000000-0000-{index:04}-0000-002f0bd58086",
        }
        for index, bus in enumerate(("29", "3a"))
    ]
}
STATS = {
    "device_level": [
        {"metrics_type": "XPUM_STATS_GPU_UTILIZATION", "value": 41.5},
        {"metrics_type": "XPUM_STATS_POWER", "value": 312.0},
        {"metrics_type": "XPUM_STATS_MEMORY_USED", "value": 1024.0},
    ]
}


@pytest.fixture
def xpu_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts an xpu-smi on PATH that answers with these texts; none where `cards` is None."""

    def install(cards: str | None, stats: str = "") -> None:
        monkeypatch.setattr(tool, "FIND", replace(tool.FIND, folders=()))
        real = os.environ["PATH"]
        monkeypatch.setenv("PATH", str(tmp_path))
        if cards is None:
            return
        (tmp_path / "cards").write_text(cards)
        (tmp_path / "stats").write_text(stats)
        path = tmp_path / tool.NAME
        path.write_text(
            f"#!/bin/sh\nPATH={real}\n"
            f'[ "$1" = discovery ] && exec cat {tmp_path}/cards\nexec cat {tmp_path}/stats\n'
        )
        path.chmod(0o755)

    return install


def test_the_platform_is_found_by_its_entry_point():
    assert all_platforms()["xpu"] is XpuPlatform


def test_an_xpu_build_with_devices_is_usable():
    decision = decide(Facts(torch=BUILD, device_counts={"xpu-smi": 2}))
    assert (decision.platform, decision.vendor) == ("xpu", "intel")
    assert decision.is_usable_here
    assert decision.devices == (0, 1)


def test_an_xpu_build_without_devices_stays_intels():
    decision = decide(Facts(torch=BUILD, device_counts={"xpu-smi": 0}))
    assert (decision.vendor, decision.is_built_for, decision.is_usable_here) == (
        "intel",
        True,
        False,
    )


def test_another_build_of_torch_is_not_intels():
    assert decide(Facts(torch=TorchBuild("2.9.1+cpu"))).platform == "cpu"


def test_the_mask_chooses_devices():
    facts = Facts(
        torch=BUILD, device_counts={"xpu-smi": 4}, environment={"ZE_AFFINITY_MASK": "1,3"}
    )
    assert decide(facts).devices == (1, 3)


def test_a_users_value_wins_over_the_default():
    platform = XpuPlatform()
    (ours,) = settings(platform, "rollout", {})
    (users,) = settings(platform, "rollout", {"VLLM_WORKER_MULTIPROC_METHOD": "fork"})
    assert (ours.value, users.value, users.is_users_own) == ("spawn", "fork", True)
    assert settings(platform, "trainer", {}) == ()


def test_devices_are_counted_by_the_tool(xpu_smi):
    xpu_smi(json.dumps(CARDS))
    assert XpuPlatform.count_devices() == {"xpu-smi": 2}


def test_a_tool_that_is_absent_or_babbles_gives_no_count(xpu_smi):
    xpu_smi(None)
    assert XpuPlatform.count_devices() == {}
    xpu_smi("Segmentation fault")
    assert XpuPlatform.count_devices() == {"xpu-smi": None}


def test_telemetry_degrades_field_by_field(xpu_smi):
    xpu_smi(json.dumps(CARDS), json.dumps(STATS))
    first, second = XpuTelemetry().read().readings
    assert first.identity.key != second.identity.key
    assert (first.utilization, first.power_w) == (0.415, 312.0)
    assert first.memory_used_bytes == 1024 * 2**20
    assert (first.temperature_c, first.throttle) == (None, None)
    assert "temperature_c" in first.missing


def test_telemetry_of_a_card_that_does_not_answer_is_unknown(xpu_smi):
    xpu_smi(json.dumps(CARDS), "no such device")
    first, _ = XpuTelemetry().read().readings
    assert first.power_w is None
    assert first.missing["power_w"] == "xpu-smi printed no JSON"


def test_telemetry_without_the_tool_says_so(xpu_smi):
    xpu_smi(None)
    assert XpuTelemetry().read().problem == "xpu-smi isn't installed here"


def test_without_a_device_the_platform_refuses_in_one_sentence():
    platform = XpuPlatform()
    if platform.module.is_available():
        pytest.skip("this machine has an Intel GPU")
    with pytest.raises(UnsupportedError, match=r"install an XPU build|ZE_AFFINITY_MASK"):
        platform.require_usable()
    with pytest.raises(UnsupportedError, match="there are 0"):
        platform.device(0)
