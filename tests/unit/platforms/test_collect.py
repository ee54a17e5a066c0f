"""Facts are gathered from this machine without initialising a device runtime."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from parity.platforms.collect import collect, read_plugins, relevant
from parity.platforms.cuda import CudaPlatform
from parity.platforms.npu import NpuPlatform
from parity.platforms.rocm import RocmPlatform

PROBE = """
import sys
from parity.platforms.collect import collect
from parity.platforms.detect import decide
decision = decide(collect())
print(decision.platform, decision.vendor, decision.is_built_for, decision.is_usable_here)
print([name for name in ("torch", "pynvml", "amdsmi", "torch_npu") if name in sys.modules])
"""


def run(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PARITY_PLATFORM": "", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_deciding_loads_neither_torch_nor_any_vendor_library():
    lines = run(PROBE).stdout.splitlines()
    assert lines[1] == "[]"


@pytest.fixture
def amd_build(tmp_path: Path) -> str:
    """A folder that shadows torch with one that says it is built for ROCm."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.9+rocm7'\nhip = '7.2'\n")
    return str(tmp_path)


def executable(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_real_process_with_an_amd_build_and_no_tool_is_amd_and_not_usable(amd_build):
    done = run(PROBE, PYTHONPATH=amd_build)
    assert done.stdout.splitlines()[0] == "rocm amd True False"


def test_a_real_tool_that_fails_or_prints_garbage_does_not_change_the_vendor(amd_build, tmp_path):
    for body in ("exit 3", "echo nonsense"):
        for tool in ("amd-smi", "rocm-smi", "nvidia-smi"):
            executable(tmp_path / "bin", tool, body)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = run(PROBE, PYTHONPATH=amd_build, PATH=path)
        assert done.stdout.splitlines()[0] == "rocm amd True False"


def test_a_real_tool_that_lists_another_vendors_devices_does_not_either(amd_build, tmp_path):
    executable(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = run(PROBE, PYTHONPATH=amd_build, PATH=path)
    assert done.stdout.splitlines()[0] == "rocm amd True False"


def test_variables_about_devices_are_kept_and_secrets_and_the_rest_are_not():
    kinds = (CudaPlatform, RocmPlatform, NpuPlatform)
    kept = {
        "CUDA_VISIBLE_DEVICES": "0",
        "cuda_visible_devices": "1",
        "HSA_NO_SCRATCH_RECLAIM": "0",
        "RAY_EXPERIMENTAL_NOSET_X": "1",
        "HCCL_NPU_SOCKET_PORT_RANGE": "auto",
        "PARITY_PLATFORM": "cpu",
    }
    dropped = {
        "HOME": "/root",
        "VLLM_API_KEY": "s",
        "PARITY_HUB_TOKEN": "s",
        "PARITY_DECISION": "{}",
        "SGLANG_PASSWORD": "s",
    }
    assert relevant({**dropped, **kept}, kinds) == kept


def test_a_folder_named_like_a_backend_is_no_backend(tmp_path, monkeypatch):
    (tmp_path / "torch_npu").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_plugins([NpuPlatform], EntryPoints()) == {}
    (tmp_path / "torch_npu/__init__.py").write_text("raise RuntimeError('imported')")
    import importlib

    importlib.invalidate_caches()
    assert read_plugins([NpuPlatform], EntryPoints()) == {"torch_npu": None}


def test_backends_that_register_with_torch_are_found_without_being_imported():
    points = EntryPoints([EntryPoint("acme", "torch_acme.start:go", "torch.backends")])
    assert read_plugins([], points) == {"torch_acme": None}


def test_a_platform_whose_readers_fail_leaves_unknowns(monkeypatch, caplog):
    def fail():
        raise OSError("no")

    monkeypatch.setattr(RocmPlatform, "count_devices", fail)
    monkeypatch.setattr(RocmPlatform, "read_versions", fail)
    facts = collect(probe_tools=False)
    assert facts.device_counts["kfd"] is None
    assert "facts_failed platform=rocm" in caplog.text


def test_tools_are_run_only_where_that_was_asked():
    assert collect(probe_tools=False).smi == ()
    tools = [probe.tool for probe in collect(deadline_s=5).smi]
    assert tools == sorted(tools)
    assert {"nvidia-smi", "amd-smi", "rocm-smi", "npu-smi"} <= set(tools)


@pytest.mark.parametrize(
    ("counts", "versions"),
    [
        ({"kfd": "many"}, {}),
        ({"kfd": -1}, {}),
        ({"nvidia-driver": 8}, {}),
        (None, {}),
        ({}, {"ray": 7}),
        ({}, {3: "x"}),
        ({}, None),
    ],
)
def test_a_reader_that_gives_something_else_leaves_unknowns(counts, versions, monkeypatch, caplog):
    monkeypatch.setattr(RocmPlatform, "count_devices", lambda: counts)
    monkeypatch.setattr(RocmPlatform, "read_versions", lambda: versions)
    facts = collect(probe_tools=False)
    assert facts.device_counts.get("kfd") is None
    assert facts.device_counts.get("nvidia-driver") != 8
    assert all(isinstance(name, str) for name in facts.versions)
    assert "facts_failed platform=rocm" in caplog.text


def test_a_platform_does_not_change_what_is_known_of_ray(monkeypatch):
    known = collect(probe_tools=False).versions.get("ray")
    monkeypatch.setattr(RocmPlatform, "read_versions", lambda: {"ray": "0.1", "rocm": "7.2"})
    versions = collect(probe_tools=False).versions
    assert versions["rocm"] == "7.2"
    assert versions["ray"] == (known or "0.1")


def test_a_reader_that_ends_the_process_does_not(monkeypatch):
    def leave():
        raise SystemExit(3)

    monkeypatch.setattr(RocmPlatform, "count_devices", leave)
    assert collect(probe_tools=False).device_counts["kfd"] is None
