"""Intel GPUs as a platform, through torch's XPU build (`torch.xpu`)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING

from parity.errors import UnsupportedError
from parity.platforms.facts import Facts
from parity.platforms.machine.torch_build import read_torch_build
from parity.platforms.platform import Default, MemoryInfo, Platform, Role, Support
from parity.platforms.telemetry.telemetry import Telemetry
from parity.platforms.visibility.compose import Rules
from parity_xpu import tool

if TYPE_CHECKING:
    import torch


class XpuPlatform(Platform):
    """Computes on Intel GPUs."""

    name = "xpu"
    vendor = "intel"
    device_type = "xpu"
    precedence = 10
    torch_plugins = ()
    is_default_build = False
    smi_tools = ()  # the tools that Parity itself runs
    count_sources = (tool.NAME,)
    variable_prefixes = ("ZE_", "ONEAPI_", "SYCL_", "CCL_")
    device_nodes = ("/dev/dri/renderD*",)
    visibility = Rules(
        outer=None,
        inner=("ZE_AFFINITY_MASK",),  # whole cards; 0.1 (a tile) is refused
        needs_ascending_ids=True,  # the driver filters by it and keeps its own order
        hides_after_negative=False,
        is_empty_ambiguous=True,
        nothing="",
    )
    collective_backends = ("xccl",)
    ray_resource = "GPU"
    has_thread_budget = False
    has_graph_capture = False
    has_bf16_reduce = True

    # ---- facts -----------------------------------------------------------------------------------

    @classmethod
    def built_for(cls, facts: Facts) -> str | None:
        """The XPU build of torch says its version of oneAPI."""
        if facts.torch is None or facts.torch.xpu is None:
            return None
        return f"XPU {facts.torch.xpu}"

    @classmethod
    def remedy(cls) -> str:
        """XPU builds have an index of their own."""
        return "install an XPU build of torch (pytorch.org lists the index)"

    @classmethod
    def count_devices(cls) -> Mapping[str, int | None]:
        """As `xpu-smi` counts; no key where the tool isn't installed."""
        answer = tool.ask("discovery", "-j")
        if answer is None:
            return {}
        cards = tool.cards(answer)
        return {tool.NAME: None if cards is None else len(cards)}

    @classmethod
    def read_versions(cls) -> Mapping[str, str | None]:
        """The driver doesn't write its version into a file of its own."""
        return {}

    def capability(self, index: int = 0) -> tuple[int, int] | None:
        """Intel counts otherwise."""
        del index
        return None

    def fast_dtypes(self) -> tuple[str, ...]:
        """bf16 where every visible card computes it."""
        if self.module.is_bf16_supported():
            return ("bfloat16", "float16", "float32")
        return ("float16", "float32")

    def has_fp8(self, index: int = 0) -> bool | None:
        """Not known by model."""
        del index
        return None

    def ray_noset_variables(self, ray_version: str | None) -> tuple[str, ...]:
        """Ray's newer versions set the first list, its older ones the second."""
        del ray_version
        prefix = "RAY_EXPERIMENTAL_NOSET_"
        return (f"{prefix}ZE_AFFINITY_MASK", f"{prefix}ONEAPI_DEVICE_SELECTOR")

    def defaults(self, role: Role, environment: Mapping[str, str]) -> tuple[Default, ...]:
        """See the reason."""
        del environment
        return (SPAWN,) if role == "rollout" else ()

    def ipc_support(self, facts: Facts) -> Support:
        """Torch doesn't share XPU storages between processes."""
        del facts
        return Support(False, "torch has no IPC for XPU memory")

    def telemetry(self) -> Telemetry:
        """Through `xpu-smi`."""
        from parity_xpu.telemetry import XpuTelemetry

        return XpuTelemetry()

    # ---- device calls ----------------------------------------------------------------------------

    @property
    def module(self) -> ModuleType:
        """`torch.xpu`."""
        import torch

        return torch.xpu

    def require_usable(self) -> None:
        """Asks the build first, then the runtime, which initialises it."""
        if self.built_for(Facts(torch=read_torch_build())) is None:
            raise UnsupportedError(
                f"platform=xpu, but this torch isn't built for it; {self.remedy()}, or choose"
                " another platform (cpu works everywhere)."
            )
        if not self.module.is_available():
            raise UnsupportedError(
                "platform=xpu, but torch finds no usable Intel GPU in this process; check the"
                " driver and ZE_AFFINITY_MASK (`parity doctor`), or set platform=cpu."
            )

    def device(self, index: int = 0) -> "torch.device":
        """The GPU of a local index among the visible ones."""
        import torch

        count = self.device_count()
        if not 0 <= index < count:
            seen = f"0 to {count - 1}" if count else "none"
            raise UnsupportedError(f"device {index} was asked, and there are {count} ({seen})")
        return torch.device(self.device_type, index)

    def current_device(self) -> int:
        """The GPU of this thread."""
        return self.module.current_device()

    def device_count(self) -> int:
        """As the runtime counts."""
        return self.module.device_count()

    def set_device(self, index: int) -> None:
        """Checks the index first."""
        self.module.set_device(self.device(index))

    def synchronize(self, index: int | None = None) -> None:
        """Wait for every stream of the device."""
        self.module.synchronize(index)

    def seed(self, seed: int) -> None:
        """Seed the generators of the host and of every visible device."""
        import torch

        torch.manual_seed(seed)
        self.module.manual_seed_all(seed)

    def set_allocator(self, settings: str) -> None:
        """There is nothing to set."""
        raise UnsupportedError(
            f"the allocator settings {settings!r} can't be applied: torch has none for XPU."
        )

    def empty_cache(self) -> None:
        """Give cached blocks back to the driver."""
        self.module.empty_cache()

    def memory(self, index: int = 0) -> MemoryInfo:
        """Device memory, as the driver counts it: other processes included."""
        free_bytes, total_bytes = self.module.mem_get_info(self.device(index))
        return MemoryInfo(free_bytes=free_bytes, total_bytes=total_bytes)

    def device_name(self, index: int = 0) -> str:
        """As in `Intel(R) Data Center GPU Max 1550`."""
        return self.module.get_device_name(self.device(index))

    def profiler_range(self, name: str) -> AbstractContextManager[None]:
        """An ITT range, which VTune shows, where torch was built with it."""
        from torch.profiler import itt

        return itt.range(name) if itt.is_available() else nullcontext()

    def profiler_start(self) -> None:
        """VTune is started from outside."""

    def profiler_stop(self) -> None:
        """See `profiler_start`."""


SPAWN = Default(
    "VLLM_WORKER_MULTIPROC_METHOD",
    "spawn",
    "a forked process can't use the device runtime that its parent has started",
)
