"""Options of a test container: its devices, by vendor, and what may never be asked for.

Used by the renderer. A container gets the device nodes of its own runner and nothing of the host:
where a host is shared by several runners, `[[workflow.slots]]` says which nodes belong to which,
so that a neighbour's devices aren't even visible.
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

GROUPS = ("--group-add=video", "--group-add=render")
MANAGEMENT_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
DAVINCI_DRIVER = (
    "/usr/local/Ascend/driver",  # hardware name: where the vendor installs it
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",  # hardware name: the vendor's tool
)
# An option is allowed by its name and value; what isn't known could open the host.
_NODE = "infiniband|kfd|dri|nvidia|davinci|devmm_svm|hisi_hdc"  # hardware name: device nodes
NODES = rf"/dev/({_NODE})\w*(/\w+)*"
ALLOWED = {
    "cap-add": "(CAP_)?(SYS_PTRACE|SYS_NICE|IPC_LOCK)",
    "cpus": ".*",
    "cpuset-cpus": ".*",
    "device": NODES,
    "env": ".*",
    "hostname": ".*",
    "init": "true",
    "label": ".*",
    "memory": ".*",
    "memory-swap": ".*",
    "pids-limit": ".*",
    "security-opt": "seccomp=unconfined|no-new-privileges(=true)?",
    "shm-size": ".*",
    "ulimit": ".*",
    "workdir": ".*",
}
SHELL_TEXT = re.compile("[;&|`$<>\n]")
SYSTEM_FOLDERS = (
    "bin boot dev etc lib lib32 lib64 proc root run sbin sys usr var host".split()
)  # the first folder of a path


def forbidden_option(option: str) -> str | None:
    """Why an option can't be allowed; None where it can."""
    if SHELL_TEXT.search(option):
        return "it isn't an option but shell text"
    name, _, value = option.removeprefix("--").partition("=")
    known = ", ".join(f"--{each}" for each in ALLOWED)
    if not option.startswith("--") or name not in ALLOWED:
        return f"only {known} are allowed, each with its value after '=': others open the host"
    if not re.fullmatch(ALLOWED[name], value or "true", re.IGNORECASE | re.DOTALL):
        return f"the value of --{name} has to match {ALLOWED[name]}: others open the host"
    return None


def forbidden_mount(source: str) -> str | None:
    """Why a folder of the host can't be mounted; None where it can."""
    if SHELL_TEXT.search(source):
        return "it isn't a path but shell text"
    parts = PurePosixPath(posixpath.normpath(source)).parts[1:]
    if len(parts) == 0 or parts[0] in SYSTEM_FOLDERS or parts == ("home",):
        return "it reaches files of the host's system; keep data in a folder such as /data"
    if any(part.startswith(".") for part in parts):
        return "it reaches hidden files of the host"
    return None


def gpu_options(count: int, devices: Sequence[str] | None) -> tuple[str, ...]:
    """GPUs by the vendor's container runtime, which shows a container only those named."""
    if devices is None:
        return ("--gpus=all",)
    # The quotes belong to the value: the runtime reads it as CSV, where a comma separates options.
    return (f'--gpus="\\"device={",".join(devices)}\\""',)


def render_node_options(count: int, devices: Sequence[str] | None) -> tuple[str, ...]:
    """The compute node and the render nodes; without slots those of the whole host."""
    nodes = ["dri"] if devices is None else [f"dri/{device}" for device in devices]
    return ("--device=/dev/kfd", *(f"--device=/dev/{node}" for node in nodes), *GROUPS)


def davinci_options(count: int, devices: Sequence[str] | None) -> tuple[str, ...]:
    """The davinci nodes, those of management, and the host's driver, which isn't in images."""
    numbers = [str(number) for number in range(count)] if devices is None else devices
    nodes = [*(f"davinci{number}" for number in numbers), *MANAGEMENT_NODES]
    return (
        *(f"--device=/dev/{node}" for node in nodes),
        *(f"--volume={path}:{path}:ro" for path in DAVINCI_DRIVER),
    )


def no_options(count: int, devices: Sequence[str] | None) -> tuple[str, ...]:
    """A container without devices."""
    return ()


VENDORS: dict[str, Callable[[int, Sequence[str] | None], tuple[str, ...]]] = {
    "none": no_options,
    "nvidia": gpu_options,  # hardware name: the word that ci.toml uses
    "amd": render_node_options,  # hardware name: the word that ci.toml uses
    "ascend": davinci_options,  # hardware name: the word that ci.toml uses
}
