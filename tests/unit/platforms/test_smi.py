"""The vendors' tools run as real processes, and none of their faults reaches Parity."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from unit.platforms import smi_samples as samples

from parity.platforms import smi

BY_NAME = {tool.name: tool for tool in smi.TOOLS}
LISTS = {
    "nvidia-smi": samples.NVIDIA_TWO,
    "amd-smi": samples.AMD_TWO,
    "rocm-smi": samples.ROCM_TWO,
    "npu-smi": samples.NPU_TWO,
}


class Machine:
    """A PATH with nothing on it but the fake tools that a test writes, and the shell's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": str(folder), "REAL_PATH": os.environ["PATH"]}
        self.pid_path = folder / "pid"

    def tool(self, name: str, body: str, folder: Path | None = None) -> Path:
        path = (folder or self.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\nPATH=$REAL_PATH\n{body}\n")
        path.chmod(0o755)
        return path

    def probe(self, name: str, *, deadline_s: float = 5.0):
        tool = replace(BY_NAME[name], folders=(), roots=())
        return smi.probe(tool, deadline_s=deadline_s, environment=self.environment)

    def has_ended(self, within_s: float = 5.0) -> bool:
        """Whether the process that the tool left its number of is gone."""
        pid = int(self.pid_path.read_text())
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except FileNotFoundError:
                return True
            if state == "Z":
                return True
            time.sleep(0.01)
        return False


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("name", LISTS)
def test_a_tool_that_answers_gives_its_devices(machine: Machine, name: str):
    path = machine.tool(name, f"cat <<'EOF'\n{LISTS[name]}\nEOF")
    found = machine.probe(name)
    assert (found.status, found.path, found.detail) == ("ok", str(path), None)
    assert [device.index for device in found.devices or ()] == [0, 1]
    assert len({device.uuid for device in found.devices or ()}) == 2


@pytest.mark.parametrize("name", LISTS)
def test_an_absent_tool_is_absent_and_its_devices_are_unknown(machine: Machine, name: str):
    found = machine.probe(name)
    assert (found.status, found.path, found.devices) == ("absent", None, None)
    assert "PATH" in (found.detail or "")


@pytest.mark.parametrize("name", LISTS)
def test_each_tool_is_asked_with_its_own_arguments(machine: Machine, name: str):
    machine.tool(name, f'echo "$@" > {machine.folder}/arguments')
    machine.probe(name)
    said = (machine.folder / "arguments").read_text().split()
    assert tuple(said) == BY_NAME[name].arguments


def test_a_tool_outside_path_is_found_in_its_folder_and_in_the_toolkit(machine: Machine):
    place = machine.folder / "opt/bin"
    machine.tool("rocm-smi", "exit 0", folder=place)
    tool = replace(BY_NAME["rocm-smi"], folders=(str(place),))
    assert smi.find(tool, machine.environment) == place / "rocm-smi"
    tool = replace(tool, folders=())
    assert smi.find(tool, machine.environment) is None
    toolkit = machine.environment | {"ROCM_PATH": str(machine.folder / "opt")}
    assert smi.find(tool, toolkit) == place / "rocm-smi"


def test_a_folder_or_a_file_that_cannot_run_is_not_a_tool(machine: Machine):
    (machine.folder / "nvidia-smi").mkdir()
    assert machine.probe("nvidia-smi").status == "absent"
    machine.tool("rocm-smi", "exit 0").chmod(0o644)
    assert machine.probe("rocm-smi").status == "absent"


def test_a_failing_tool_says_why(machine: Machine):
    machine.tool("nvidia-smi", "echo 'NVIDIA-SMI has failed: no driver'; exit 9")
    found = machine.probe("nvidia-smi")
    assert (found.status, found.devices) == ("failed", None)
    assert found.detail == "nvidia-smi ended with status 9: NVIDIA-SMI has failed: no driver"


def test_a_tool_that_dies_of_a_signal_has_failed(machine: Machine):
    machine.tool("amd-smi", "kill -SEGV $$")
    assert machine.probe("amd-smi").status == "failed"


def test_a_tool_with_a_broken_interpreter_has_failed(machine: Machine):
    path = machine.folder / "rocm-smi"
    path.write_text("#!/nowhere/python\n")
    path.chmod(0o755)
    found = machine.probe("rocm-smi")
    assert found.status == "failed"
    assert "can't be started" in (found.detail or "")


@pytest.mark.parametrize("name", LISTS)
def test_garbage_is_told_from_an_answer(machine: Machine, name: str):
    machine.tool(name, "printf 'core dumped \\033[31m\\377\\n'")
    found = machine.probe(name)
    assert (found.status, found.devices) == ("garbage", None)
    assert "core dumped ?[31m" in (found.detail or "")


def test_a_hanging_tool_is_killed_at_the_deadline(machine: Machine):
    machine.tool("nvidia-smi", f"echo $$ > {machine.pid_path}; exec sleep 60")
    begun = time.monotonic()
    found = machine.probe("nvidia-smi", deadline_s=0.5)
    assert time.monotonic() - begun < 10
    assert (found.status, found.devices) == ("timeout", None)
    assert "0.5 s" in (found.detail or "")
    assert machine.has_ended()


def test_a_grandchild_that_holds_the_pipe_of_a_hanging_tool_is_killed_too(machine: Machine):
    machine.tool("npu-smi", f"sleep 60 & echo $! > {machine.pid_path}; wait")
    assert machine.probe("npu-smi", deadline_s=0.5).status == "timeout"
    assert machine.has_ended()


def test_a_grandchild_that_outlives_its_tool_does_not_keep_us(machine: Machine):
    body = f"cat <<'EOF'\n{samples.NVIDIA_TWO}EOF\nsleep 60 & echo $! > {machine.pid_path}"
    machine.tool("nvidia-smi", body)
    begun = time.monotonic()
    found = machine.probe("nvidia-smi", deadline_s=30)
    assert time.monotonic() - begun < 15
    assert (found.status, len(found.devices or ())) == ("ok", 2)
    assert machine.has_ended()


def test_a_tool_that_closes_its_pipes_and_stays_is_killed(machine: Machine):
    machine.tool("amd-smi", f"echo $$ > {machine.pid_path}; exec >&- 2>&-; exec sleep 60")
    assert machine.probe("amd-smi", deadline_s=0.5).status == "timeout"
    assert machine.has_ended()


def test_a_tool_that_never_stops_printing_is_cut_off(machine: Machine):
    machine.tool("rocm-smi", f"echo $$ > {machine.pid_path}; exec yes flood")
    found = machine.probe("rocm-smi", deadline_s=60)
    assert found.status == "garbage"
    assert str(smi.MAX_OUTPUT_BYTES) in (found.detail or "")
    assert machine.has_ended()


def test_a_long_answer_on_both_pipes_is_read_whole(machine: Machine):
    filler = f"head -c {2**20} /dev/zero | tr '\\0' ' ' >&2"
    machine.tool("nvidia-smi", f"{filler}; cat <<'EOF'\n{samples.NVIDIA_TWO}EOF")
    assert len(machine.probe("nvidia-smi", deadline_s=60).devices or ()) == 2


def test_a_tool_that_reads_its_input_finds_it_empty(machine: Machine):
    machine.tool("nvidia-smi", f"cat; cat <<'EOF'\n{samples.NVIDIA_TWO}EOF")
    assert machine.probe("nvidia-smi").status == "ok"


def test_all_tools_are_asked_at_once_and_sorted(machine: Machine):
    for name in LISTS:
        machine.tool(name, "exec sleep 60")
    tools = [replace(tool, folders=(), roots=()) for tool in smi.TOOLS]
    begun = time.monotonic()
    found = smi.probe_all(deadline_s=1.0, environment=machine.environment, tools=tools)
    assert time.monotonic() - begun < 3.5  # one after the other takes four
    assert [probe.tool for probe in found] == sorted(LISTS)
    assert {probe.status for probe in found} == {"timeout"}


def test_no_descriptor_is_left_open(machine: Machine):
    machine.tool("nvidia-smi", "exit 1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        machine.probe("nvidia-smi")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_toolkit_folder_that_cannot_be_searched_is_passed_over(machine: Machine):
    tool = replace(BY_NAME["nvidia-smi"], folders=(str(machine.folder / "known"),))
    here = machine.tool("nvidia-smi", "exit 0", machine.folder / "known")
    environment = {"PATH": "/nowhere", "CUDA_HOME": "x" * 5000}
    assert smi.find(tool, environment) == here


SYSTEM = {"/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin"}
FOLDERS = {
    "nvidia-smi": {*SYSTEM, "/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/usr/lib/wsl/lib"},
    "amd-smi": {*SYSTEM, "/opt/rocm/bin"},
    "rocm-smi": {*SYSTEM, "/opt/rocm/bin"},
    "npu-smi": {*SYSTEM, "/usr/local/Ascend/driver/tools"},
}
ROOTS = {
    "nvidia-smi": ("CUDA_HOME", "CUDA_PATH"),
    "amd-smi": ("ROCM_PATH", "ROCM_HOME"),
    "rocm-smi": ("ROCM_PATH", "ROCM_HOME"),
    "npu-smi": (),
}


def test_the_folders_of_every_tool_are_the_ones_that_are_written_here():
    assert {name: set(tool.folders) for name, tool in BY_NAME.items()} == FOLDERS
    assert {name: tool.roots for name, tool in BY_NAME.items()} == ROOTS
