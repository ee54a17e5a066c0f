"""`parity doctor` as a process: this machine, faked tools, time, and no device runtime."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAX_CPU_S = 2.0  # beyond the import of torch; CPU seconds, because a busy machine stretches others


def run(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PARITY_PLATFORM", None)
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=240, env=environment
    )


def doctor(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run("-m", "parity.cli.main", "doctor", *words, **variables)


def has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or "cpu" not in torch.__version__


def cpu_seconds(call) -> float:
    """CPU seconds of the processes that a call runs and waits for, grandchildren included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.skipif(has_accelerator(), reason="the verdict of a CPU machine")
def test_this_cpu_machine_is_usable():
    done = doctor("--json")
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_status"]
    assert done.returncode in (0, 1), done.stdout
    assert report["decision"]["platform"] == "cpu"
    assert report["decision"]["reasons"]
    assert {"torch", "transformers", "ray"} <= {each["name"] for each in report["libraries"]}
    assert len(report["limits"]) == 5


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """A PATH on which each vendor tool fails in its own way."""
    bodies = {
        "nvidia-smi": "echo no driver >&2; exit 9",
        "rocm-smi": "echo '}{'",
        "npu-smi": "exit 0",
        "amd-smi": "kill -9 $$",
    }
    for name, body in bodies.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.skipif(has_accelerator(), reason="the verdict of a CPU machine")
def test_broken_tools_of_any_vendor_change_nothing_on_a_cpu_machine(tools: dict[str, str]):
    done = doctor("--json", **tools)
    report = json.loads(done.stdout)
    assert report["decision"]["platform"] == "cpu"
    assert done.returncode in (0, 1)
    statuses = {each["tool"]: each["status"] for each in report["facts"]["smi"]}
    assert statuses == {
        "amd-smi": "failed",
        "npu-smi": "garbage",
        "nvidia-smi": "failed",
        "rocm-smi": "garbage",
    }


def test_it_takes_less_than_two_seconds_beyond_the_import_of_torch():
    torch_s = cpu_seconds(lambda: run("-c", "import torch"))
    doctor_s = min(cpu_seconds(lambda: doctor("--json")) for _ in range(2))
    assert doctor_s - torch_s < MAX_CPU_S


WATCH = """
import sys
from parity.cli.main import main
code = main(["doctor", "--json"])
assert code in (0, 1, 2), code
assert "torch" not in sys.modules, "torch was imported"
loaded = open("/proc/self/maps").read()
for library in ("libcuda.so", "libamdhip64", "libhsa-runtime", "libascendcl", "libze_loader"):
    assert library not in loaded, library
print("clean", file=sys.stderr)
"""


def test_no_device_runtime_and_not_even_torch_is_in_its_process():
    done = run("-c", WATCH)
    assert done.stderr.strip().endswith("clean"), done.stderr


def test_a_hanging_tool_is_bounded_and_told(tmp_path: Path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nsleep 300 & wait\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    begun = time.monotonic()
    code = (
        "import parity.platforms.collect as c; c.DEADLINE_S = 1.0\n"
        "facts = c.collect(deadline_s=1.0)\n"
        "print(facts.probe('nvidia-smi').status)"
    )
    done = run("-c", code, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.stdout.strip() == "timeout", done.stderr
    assert time.monotonic() - begun < 60
