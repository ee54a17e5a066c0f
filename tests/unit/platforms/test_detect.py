"""Detection is a pure function of facts; asking by name is obeyed or refused, never bent."""

from dataclasses import replace

import pytest

from parity.errors import ConfigError, UnsupportedError
from parity.platforms.cpu import CpuPlatform
from parity.platforms.detect import Facts, choose, detect, gather, load

CPU_BUILD = Facts(
    torch_version="2.13.0+cpu",
    cuda_build=None,
    hip_build=None,
    num_devices=0,
    probe_error=None,
    variable=None,
)
NVIDIA = replace(CPU_BUILD, torch_version="2.13.0", cuda_build="13.0", num_devices=8)
AMD = replace(CPU_BUILD, torch_version="2.13.0+rocm7.2", hip_build="7.2", num_devices=1)


@pytest.mark.parametrize(("facts", "name"), [(CPU_BUILD, "cpu"), (NVIDIA, "cuda"), (AMD, "rocm")])
def test_the_build_and_its_devices_decide(facts: Facts, name: str):
    decision = detect(facts)
    assert decision.name == name
    assert facts.torch_version in decision.reasons[0]
    assert decision.warning is None


def test_a_build_for_both_answers_as_rocm_because_it_only_borrows_the_other_name():
    assert detect(replace(AMD, cuda_build="13.0")).name == "rocm"


@pytest.mark.parametrize("facts", [NVIDIA, AMD])
def test_a_build_without_a_usable_device_runs_on_the_cpu_with_one_warning(facts: Facts):
    decision = detect(replace(facts, num_devices=0))
    assert decision.name == "cpu"
    assert decision.warning is not None
    assert "no device is usable" in decision.warning
    assert f"platform={detect(facts).name} to insist" in decision.warning


def test_a_probe_that_failed_is_not_zero_devices():
    decision = detect(replace(NVIDIA, num_devices=None, probe_error="driver too old"))
    assert decision.name == "cpu"
    assert "asking for devices failed: driver too old" in decision.reasons


def test_a_name_in_the_run_file_wins_over_the_variable_and_over_detection():
    facts = replace(NVIDIA, variable="rocm")
    assert choose("cpu", facts).name == "cpu"
    assert choose("auto", facts).name == "rocm"
    assert choose("auto", facts).reasons == ("PARITY_PLATFORM=rocm was set",)
    assert choose("auto", replace(facts, variable="auto")).name == "cuda"
    assert choose("auto", NVIDIA).name == "cuda"


def test_an_unknown_name_is_refused_where_it_was_said():
    with pytest.raises(ConfigError, match=r"platform is 'cdua'.*Did you mean 'cuda'"):
        choose("cdua", CPU_BUILD)
    with pytest.raises(ConfigError, match=r"PARITY_PLATFORM is 'tpu9'; known: auto, cpu"):
        choose("auto", replace(CPU_BUILD, variable="tpu9"))


def test_this_process_loads_what_it_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARITY_PLATFORM", "cpu")
    assert gather().variable == "cpu"
    assert isinstance(load(), CpuPlatform)
    assert isinstance(load("cpu"), CpuPlatform)


def test_a_platform_that_this_build_lacks_is_refused_with_the_way_out():
    facts = gather()
    if facts.cuda_build is None:
        with pytest.raises(UnsupportedError, match=r"built without CUDA.*platform=cpu"):
            load("cuda")
    if facts.hip_build is None:
        with pytest.raises(UnsupportedError, match="built without ROCm"):
            load("rocm")
