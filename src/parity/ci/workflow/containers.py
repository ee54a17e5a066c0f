"""Options of a test container: its devices, by vendor, and what may never be asked for.

Used by the renderer. A container gets the device nodes of its own runner and nothing of the host:
where a host is shared by several runners, `[[workflow.slots]]` says which nodes belong to which,
so that a neighbour's devices aren't even visible.
"""

import re
from collections.abc import Callable, Sequence

GROUPS = ("--group-add=video", "--group-add=render")
MANAGEMENT_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
DAVINCI_DRIVER = (
    "/usr/local/Ascend/driver",  # hardware name: where the vendor installs it
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",  # hardware name: the vendor's tool
)
# What would let the code of a pull request out of its container.
ESCAPES = (
    (r"--privileged(=.*)?", "a privileged container owns its host"),
    (r"--(pid|ipc|network|net|uts|userns|cgroupns)[= ]host", "it shares the host's namespace"),
    (r"--cap-add[= ](ALL|SYS_ADMIN|SYS_MODULE|SYS_RAWIO|DAC_READ_SEARCH)",
     "it makes the job root on the host"),
    (r".*docker\.sock.*", "the socket of Docker starts containers on the host"),
    (r"(-v|--volume|--mount)[= ].*(:/host\b|/etc|/root|/var/run|/run|/proc|/sys)\b.*",
     "it reaches files of the host's system"),
    (r"--security-opt[= ].*apparmor[=:]unconfined", "it takes the host's protection away"),
    (r"--device[= ]/dev/?", "all devices of the host are more than the job's"),
    (r".*[;&|`$<>\n].*", "it isn't an option but shell text"),
)  # fmt: skip


def forbidden_option(option: str) -> str | None:
    """Why an option can't be allowed; None where it can."""
    if not option.startswith("-"):
        return "an option begins with '-' and holds its value after '='"
    for pattern, why in ESCAPES:
        if re.fullmatch(pattern, option, re.IGNORECASE | re.DOTALL):
            return why
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
