"""Huawei Ascend NPUs as a platform, through the package torch_npu, which adds `torch.npu`."""

import platform as host
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from parity.errors import UnsupportedError
from parity.platforms.facts import Facts
from parity.platforms.machine import kernel, toolkit
from parity.platforms.platform import Default, MemoryInfo, Platform, Role, Support
from parity.platforms.tables.ray_variables import noset_variables
from parity.platforms.visibility.compose import Rules

if TYPE_CHECKING:
    import torch

    from parity.platforms.ipc import DeviceIpc
    from parity.platforms.telemetry.telemetry import Telemetry

PLUGIN = "torch_npu"
DRIVER_VERSION = Path("/usr/local/Ascend/driver/version.info")
CANN_FOLDERS = (
    Path("/usr/local/Ascend/ascend-toolkit/latest"),
    Path("/usr/local/Ascend/cann"),
)
CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
IPC_SINCE = {"npu-smi": "25.3.rc1", "CANN": "8.3.rc1"}


class NpuPlatform(Platform):
    """Computes on Ascend NPUs."""

    name = "npu"
    vendor = "huawei"
    device_type = "npu"
    precedence = 100
    torch_plugins = (PLUGIN,)
    is_default_build = False
    smi_tools = ("npu-smi",)
    count_sources = ()
    variable_prefixes = ("ASCEND_", "HCCL_", "VLLM_ASCEND_", "TASK_QUEUE_", "NCCL_")
    device_nodes = ("/dev/davinci[0-9]*", "/dev/davinci_manager")
    visibility = Rules(
        outer=None,
        inner=("ASCEND_RT_VISIBLE_DEVICES",),
        needs_ascending_ids=True,
        hides_after_negative=False,
        is_empty_ambiguous=False,
        nothing="",
    )
    collective_backends = ("hccl", "flagcx")
    ray_resource = "NPU"
    has_thread_budget = False
    has_graph_capture = True
    has_bf16_reduce = True

    @classmethod
    def built_for(cls, facts: Facts) -> str | None:
        """The package is installed; whatever build of torch it extends."""
        if facts.torch is None or PLUGIN not in facts.plugins:
            return None
        return f"Ascend ({PLUGIN} {facts.plugins[PLUGIN] or 'of an unknown version'})"

    @classmethod
    def remedy(cls) -> str:
        """A package beside torch."""
        return f"install the package {PLUGIN} of your version of torch"

    @classmethod
    def count_devices(cls) -> Mapping[str, int | None]:
        """The driver keeps no table that says which card is behind a node; npu-smi does."""
        return {}

    @classmethod
    def read_versions(cls) -> Mapping[str, str | None]:
        """The driver's and CANN's."""
        arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(host.machine(), host.machine())
        name = f"{arch}-linux/ascend_toolkit_install.info"
        return {
            **kernel.read_version("ascend-driver", DRIVER_VERSION, r"(?im)^version\s*=\s*(\S+)"),
            **toolkit.read_version("cann", CANN_VARIABLES, CANN_FOLDERS, name),
        }

    @property
    def module(self) -> ModuleType:
        """`torch.npu`, which the package adds when it is imported."""
        import torch

        try:
            import torch_npu  # noqa: F401  # pyright: ignore
        except ImportError as error:
            raise UnsupportedError(
                f"platform=npu, but {PLUGIN} can't be imported ({error}); {self.remedy()}, or"
                " choose another platform (cpu works everywhere)."
            ) from error
        return cast("ModuleType", torch.npu)  # pyright: ignore[reportAttributeAccessIssue]

    def require_usable(self) -> None:
        """Asks the runtime, which initialises it."""
        if not self.module.is_available():
            raise UnsupportedError(
                "platform=npu, but torch_npu finds no usable NPU in this process; check npu-smi,"
                " the driver and ASCEND_RT_VISIBLE_DEVICES (`parity doctor`), or set platform=cpu."
            )

    def device(self, index: int = 0) -> "torch.device":
        """The NPU of a local index among the visible ones."""
        import torch

        count = self.device_count()
        if not 0 <= index < count:
            seen = f"0 to {count - 1}" if count else "none"
            raise UnsupportedError(
                f"device {index} was asked, and {count} are visible to this process ({seen})"
            )
        return torch.device(f"{self.device_type}:{index}")

    def current_device(self) -> int:
        """The NPU of this thread."""
        return self.module.current_device()

    def device_count(self) -> int:
        """As the runtime counts; it may initialise it."""
        return self.module.device_count()

    def set_device(self, index: int) -> None:
        """Checks the index first, because a wrong one fails late and far away."""
        self.module.set_device(self.device(index))

    def synchronize(self, index: int | None = None) -> None:
        """Wait for every stream of the device."""
        self.module.synchronize(*(() if index is None else (index,)))

    def seed(self, seed: int) -> None:
        """Seed the generators of the host and of every visible device."""
        import torch

        torch.manual_seed(seed)
        self.module.manual_seed_all(seed)

    def set_allocator(self, settings: str) -> None:
        """torch_npu can since 2.9."""
        setter = vars(self.module.memory).get("_set_allocator_settings")
        if setter is None:
            raise UnsupportedError(
                f"the allocator settings {settings!r} can't be changed by this {PLUGIN} (2.9 and"
                " later can); set PYTORCH_NPU_ALLOC_CONF before the start instead."
            )
        try:
            setter(settings)
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(
                f"the allocator settings {settings!r} can't be applied on platform npu:"
                f" {str(error).splitlines()[0]}."
            ) from error

    def empty_cache(self) -> None:
        """Give cached blocks back to the driver."""
        self.module.empty_cache()

    def memory(self, index: int = 0) -> MemoryInfo:
        """Device memory, as the driver counts it: other processes included."""
        free_bytes, total_bytes = self.module.mem_get_info(self.device(index))
        return MemoryInfo(free_bytes=free_bytes, total_bytes=total_bytes)

    def capability(self, index: int = 0) -> tuple[int, int] | None:
        """Ascend has no such pair of numbers."""
        del index

    def device_name(self, index: int = 0) -> str:
        """As in `Ascend910B3`."""
        return self.module.get_device_name(self.device(index))

    def fast_dtypes(self) -> tuple[str, ...]:
        """The cube units of every Atlas A2 and A3 card take bf16 and fp16."""
        return ("bfloat16", "float16", "float32")

    def has_fp8(self, index: int = 0) -> bool | None:
        """Cards up to Atlas A3 (910B, 910C) don't; of later ones nothing is known here."""
        return False if re.search(r"910(_93|[A-C])", self.device_name(index)) else None

    def ray_noset_variables(self, ray_version: str | None) -> tuple[str, ...]:
        """One list."""
        return noset_variables(("ASCEND_RT_VISIBLE_DEVICES",), ray_version)

    def defaults(self, role: Role, environment: Mapping[str, str]) -> tuple[Default, ...]:
        """See each reason."""
        if role == "driver":
            return ()
        if role == "trainer":
            return PORTS
        queue = environment.get(QUEUE_SOURCE)
        copied = () if queue is None else (Default(QUEUE, queue, QUEUE_REASON, QUEUE_SOURCE),)
        return (*PORTS, *ROLLOUT, *copied)

    def ipc_support(self, facts: Facts) -> Support:
        """From two versions on, of the driver's software and of CANN."""
        probe = facts.probe("npu-smi")
        found = {
            "npu-smi": None if probe is None else probe.version,
            "CANN": facts.versions.get("cann"),
        }
        versions = {name: toolkit.order(text) for name, text in found.items()}
        unknown = [name for name, version in versions.items() if version is None]
        said = ", ".join(f"{name} {text or 'unknown'}" for name, text in found.items())
        needs = " and ".join(f"{name} >= {least}" for name, least in IPC_SINCE.items())
        for name, least in IPC_SINCE.items():
            version, minimum = versions[name], toolkit.order(least)
            if version is not None and minimum is not None and version < minimum:
                return Support(False, f"NPU IPC needs {needs}; found {said}")
        if unknown:
            return Support(None, f"NPU IPC needs {needs}; found {said}")
        return Support(True, f"NPU IPC ({said})")

    def ipc(self) -> "DeviceIpc":
        """Handles of the runtime, as torch_npu shares storages between processes."""
        from parity.platforms.ipc import StorageIpc

        return StorageIpc(self.device_type, self.module)

    def profiler_range(self, name: str) -> AbstractContextManager[None]:
        """torch_npu marks spans through torch.profiler alone."""
        del name
        return nullcontext()

    def profiler_start(self) -> None:
        """No switch of the runtime that an attached profiler would obey."""

    def profiler_stop(self) -> None:
        """See `profiler_start`."""

    def telemetry(self) -> "Telemetry":
        """Through npu-smi."""
        from parity.platforms.telemetry.ascend import AscendTelemetry

        return AscendTelemetry()


PORTS = tuple(
    Default(name, "auto", "several processes on one NPU must not take the same port")
    for name in ("HCCL_HOST_SOCKET_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE")
)
ROLLOUT = (
    Default(
        "NCCL_CUMEM_ENABLE",
        "0",
        "as for rollout on every vendor; HCCL itself doesn't read it",
    ),
    Default(
        "VLLM_ASCEND_AUTO_DETECT_QUANTIZATION",
        "0",
        "the engine's weights are those of the trainer, whatever the model folder says",
    ),
    Default(
        "VLLM_ASCEND_ENABLE_NZ",
        "0",
        "weights in the NZ layout can't be overwritten by a publication",
    ),
)
QUEUE, QUEUE_SOURCE = "TASK_QUEUE_ENABLE", "VLLM_ASCEND_TASK_QUEUE_ENABLE"
QUEUE_REASON = f"the engine's own setting, which is {QUEUE_SOURCE}"
