"""The vendors' command-line tools (nvidia-smi, amd-smi, rocm-smi, npu-smi) as a source of facts.

A tool is looked up on PATH and in its well-known folders, run with a deadline in a process group
of its own, and always ends as one of five typed results; whatever it printed becomes a list of
devices or a reason why not. Used by detection, telemetry and `parity doctor`. Invariants: nothing
here raises because of a tool, waits longer than the deadline and a short grace, leaves a process
of its group behind, or starts a device runtime in this process. That a folder exists proves
nothing.
"""

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from parity.platforms.facts import SmiDevice, SmiProbe
from parity.platforms.telemetry import smi_output
from parity.platforms.telemetry.smi_output import Listed

DEADLINE_S = 10.0  # a node without persistence mode takes seconds to answer
KILL_GRACE_S = 1.0  # a process stuck in the driver can't be killed; it is left after this
DRAIN_GRACE_S = 0.2  # for output that is still in the pipe when the tool has ended
TICK_S = 0.02
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
MAX_REASON = 200  # characters of a tool's own message that are shown


def _no_version(text: str) -> str | None:
    """The list of devices doesn't say one."""
    del text
    return None


@dataclass(frozen=True, slots=True)
class Tool:
    """One vendor tool: how it is found, asked, and read."""

    name: str
    vendor: str
    arguments: tuple[str, ...]  # lists every device
    folders: tuple[str, ...]  # searched after PATH
    roots: tuple[str, ...]  # variables that name a toolkit whose bin/ is searched too
    read: Callable[[str], tuple[Listed, ...] | None]  # None: the output isn't a list
    version: Callable[[str], str | None] = _no_version  # of the driver, where the output says it


SYSTEM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/usr/local/sbin")
TOOLS = (
    Tool(
        name="nvidia-smi",
        vendor="nvidia",
        arguments=("-L",),
        folders=(
            *SYSTEM_FOLDERS,
            "/usr/local/nvidia/bin",
            "/usr/local/cuda/bin",
            "/usr/lib/wsl/lib",
        ),
        roots=("CUDA_HOME", "CUDA_PATH"),
        read=smi_output.nvidia_list,
    ),
    Tool(
        name="amd-smi",
        vendor="amd",
        arguments=("list", "--json"),
        folders=("/opt/rocm/bin", *SYSTEM_FOLDERS),
        roots=("ROCM_PATH", "ROCM_HOME"),
        read=smi_output.amd_list,
    ),
    Tool(
        name="rocm-smi",
        vendor="amd",
        arguments=("--showuniqueid", "--showbus", "--showproductname", "--json"),
        folders=("/opt/rocm/bin", *SYSTEM_FOLDERS),
        roots=("ROCM_PATH", "ROCM_HOME"),
        read=smi_output.rocm_cards,
    ),
    Tool(
        name="npu-smi",
        vendor="huawei",
        arguments=("info",),
        folders=(*SYSTEM_FOLDERS, "/usr/local/Ascend/driver/tools"),
        roots=(),
        read=smi_output.npu_devices,
        version=smi_output.npu_version,
    ),
)


@dataclass(frozen=True, slots=True)
class Ran:
    """How one command ended; `text` is its standard output where `status` is `ok`."""

    status: Literal["ok", "timeout", "failed", "garbage"]
    text: str = ""
    reason: str | None = None  # why it isn't `ok`


def find(tool: Tool, environment: Mapping[str, str] | None = None) -> Path | None:
    """The executable: on PATH first, then in the toolkit's folder, then where it is installed."""
    variables = os.environ if environment is None else environment
    if found := shutil.which(tool.name, path=variables.get("PATH", os.defpath)):
        return Path(found)
    roots = [Path(variables[name]) / "bin" for name in tool.roots if variables.get(name)]
    for folder in (*roots, *map(Path, tool.folders)):
        candidate = folder / tool.name
        with suppress(OSError):  # a folder that this user may not search, a name that is too long
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return candidate
    return None


def probe(
    tool: Tool, *, deadline_s: float = DEADLINE_S, environment: Mapping[str, str] | None = None
) -> SmiProbe:
    """Ask one tool for its devices; never raises because of the tool.

    The answer is about the machine: it doesn't say what this process may use.
    """
    path = find(tool, environment)
    if path is None:
        places = ", ".join(("PATH", *tool.folders))
        return SmiProbe(tool.name, "absent", detail=f"not found on {places}")
    ran = run([str(path), *tool.arguments], deadline_s=deadline_s, environment=environment)
    if ran.status != "ok":
        return SmiProbe(tool.name, ran.status, path=str(path), detail=ran.reason)
    listed = tool.read(ran.text)
    if listed is None:
        detail = f"{_command(tool)} printed no list of devices: {_excerpt(ran.text) or 'nothing'}"
        return SmiProbe(tool.name, "garbage", path=str(path), detail=detail)
    devices = tuple(SmiDevice(each.index, uuid=each.key, name=each.model) for each in listed)
    version = tool.version(ran.text)
    return SmiProbe(tool.name, "ok", path=str(path), devices=devices, version=version)


def probe_all(
    *,
    deadline_s: float = DEADLINE_S,
    environment: Mapping[str, str] | None = None,
    tools: Sequence[Tool] = TOOLS,
) -> tuple[SmiProbe, ...]:
    """Every tool's answer, sorted by its name; all are asked at the same time."""
    with ThreadPoolExecutor(max_workers=len(tools), thread_name_prefix="smi") as pool:
        answers = [
            pool.submit(probe, tool, deadline_s=deadline_s, environment=environment)
            for tool in sorted(tools, key=lambda tool: tool.name)
        ]
        return tuple(answer.result() for answer in answers)


def run(
    command: Sequence[str], *, deadline_s: float, environment: Mapping[str, str] | None = None
) -> Ran:
    """Run a command and read what it prints; its whole process group is gone afterwards.

    Ends `deadline_s` after the start at the latest, plus a grace, also where a grandchild keeps
    the pipe open or the process can't be killed. `environment` replaces this process's own.
    """
    variables = dict(os.environ if environment is None else environment)
    variables["LC_ALL"] = "C"
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
    except OSError as error:
        return Ran("failed", reason=f"{command[0]} can't be started: {error.strerror or error}")
    reader = _Reader(process, time.monotonic() + deadline_s)
    try:
        outcome = reader.read()
    finally:
        _end(process)
        reader.close()
    return _judge(Path(command[0]).name, process.returncode, outcome, reader, deadline_s)


Outcome = Literal["ended", "timed_out", "too_much"]


class _Reader:
    """Reads both pipes of a process without ever blocking on either."""

    def __init__(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        assert process.stdout is not None and process.stderr is not None
        self._process = process
        self._deadline = deadline
        self._pipes = (process.stdout, process.stderr)
        self._selector = selectors.DefaultSelector()
        self.texts: dict[IO[bytes], bytearray] = {pipe: bytearray() for pipe in self._pipes}
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)

    @property
    def out(self) -> str:
        return self.texts[self._pipes[0]].decode("utf-8", "replace")

    @property
    def err(self) -> str:
        return self.texts[self._pipes[1]].decode("utf-8", "replace")

    def read(self) -> Outcome:
        """Until both pipes end, or the process ended and its pipe is silent, or time is up."""
        ended_at: float | None = None
        while self._selector.get_map() or not _has_ended(self._process):
            now = time.monotonic()
            if now >= self._deadline:
                return "timed_out"
            if ended_at is None and _has_ended(self._process):
                ended_at = now
            if ended_at is not None and now - ended_at > DRAIN_GRACE_S:
                return "ended"
            if not self._take(min(TICK_S, self._deadline - now)):
                return "too_much"
        return "ended"

    def _take(self, wait_s: float) -> bool:
        """Whether what there was to read in this time kept within the limit."""
        if not self._selector.get_map():
            time.sleep(wait_s)
            return True
        for key, _ in self._selector.select(wait_s):
            pipe = cast("IO[bytes]", key.fileobj)
            chunk = os.read(pipe.fileno(), 65536)
            if not chunk:
                self._selector.unregister(pipe)
                continue
            self.texts[pipe] += chunk
            if len(self.texts[pipe]) > MAX_OUTPUT_BYTES:
                return False
        return True

    def close(self) -> None:
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it has; it isn't collected yet, so that its group's number stays its own."""
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    try:
        return os.waitid(os.P_PID, process.pid, flags) is not None
    except ChildProcessError:
        return True


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of the group, then collect the process."""
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # stuck in the driver: the kernel ends it later
        process.wait(KILL_GRACE_S)


def _judge(
    name: str, code: int | None, outcome: Outcome, reader: _Reader, deadline_s: float
) -> Ran:
    if outcome == "timed_out":
        return Ran("timeout", reason=f"{name} didn't answer within {deadline_s:g} s and was killed")
    if outcome == "too_much":
        return Ran("garbage", reason=f"{name} printed more than {MAX_OUTPUT_BYTES} bytes")
    if code != 0:
        said = _excerpt(reader.err) or _excerpt(reader.out) or "and said nothing"
        return Ran("failed", reason=f"{name} ended with status {code}: {said}")
    return Ran("ok", text=reader.out)


def _command(tool: Tool) -> str:
    return " ".join((tool.name, *tool.arguments))


def _excerpt(text: str) -> str:
    """The beginning of a message on one line, safe to print on a terminal."""
    line = " ".join(text.split())
    shown = "".join(c if c.isprintable() else "?" for c in line[:MAX_REASON])
    return shown + ("..." if len(line) > MAX_REASON else "")
