"""NVIDIA GPUs as a platform, through torch's CUDA build.

A ROCm build of torch answers to the same names, so this platform declines there; `rocm.py` takes
it, and extends the device calls below.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from parity.errors import UnsupportedError
from parity.platforms.facts import Facts
from parity.platforms.machine import kernel
from parity.platforms.machine.torch_build import read_torch_build
from parity.platforms.platform import Default, MemoryInfo, Platform, Role, Support
from parity.platforms.tables.ray_variables import noset_variables
from parity.platforms.visibility.compose import Rules

if TYPE_CHECKING:
    import torch

    from parity.platforms.ipc import DeviceIpc
    from parity.platforms.telemetry.telemetry import Telemetry

BF16_CAPABILITY = (8, 0)  # first compute capability (Ampere) with bf16 units
FP8_CAPABILITY = (8, 9)  # first one (Ada, Hopper) with fp8 units
ALLOCATOR_SETTERS = (  # the name since torch 2.9, then the one before
    "_accelerator_setAllocatorSettings",
    "_cuda_cudaCachingAllocator_set_allocator_settings",
)
DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
DRIVER_VERSION = Path("/sys/module/nvidia/version")


class CudaPlatform(Platform):
    """Computes on NVIDIA GPUs."""

    name = "cuda"
    vendor = "nvidia"
    device_type = "cuda"
    precedence = 10
    torch_plugins = ()
    is_default_build = True
    smi_tools = ("nvidia-smi",)
    count_sources = ("nvidia-driver",)
    variable_prefixes = ("CUDA_", "NVIDIA_", "NCCL_")
    device_nodes = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg")
    visibility = Rules(
        outer=None,
        inner=("CUDA_VISIBLE_DEVICES",),
        needs_ascending_ids=False,
        hides_after_negative=True,
        is_empty_ambiguous=False,
        nothing="-1",
    )
    collective_backends = ("nccl", "flagcx")
    ray_resource = "GPU"
    has_thread_budget = False
    has_graph_capture = True
    has_bf16_reduce = True

    @classmethod
    def built_for(cls, facts: Facts) -> str | None:
        """A CUDA build; one for ROCm only borrows the names."""
        if facts.torch is None or facts.torch.cuda is None or facts.torch.hip is not None:
            return None
        return f"CUDA {facts.torch.cuda}"

    @classmethod
    def remedy(cls) -> str:
        """CUDA builds are what PyPI has."""
        return "install a CUDA build of torch"

    @classmethod
    def count_devices(cls) -> Mapping[str, int | None]:
        """The driver keeps a folder for every GPU, each with a file that says which one it is."""
        return kernel.count_devices("nvidia-driver", DRIVER_GPUS, "*/information", _is_gpu)

    @classmethod
    def read_versions(cls) -> Mapping[str, str | None]:
        """The kernel driver's."""
        return kernel.read_version("nvidia-driver", DRIVER_VERSION, r"[0-9][0-9.]*")

    # ---- device calls, which ROCm shares -------------------------------------------------------

    @property
    def module(self) -> ModuleType:
        """`torch.cuda`."""
        import torch

        return torch.cuda

    def require_usable(self) -> None:
        """Asks the runtime, which initialises it."""
        import torch

        build = self.built_for(Facts(torch=read_torch_build()))
        if build is None:
            raise UnsupportedError(
                f"platform={self.name}, but torch {torch.__version__} isn't built for it;"
                f" {self.remedy()}, or choose another platform (cpu works everywhere)."
            )
        if not torch.cuda.is_available():
            raise UnsupportedError(
                f"platform={self.name}, but torch finds no usable {self.vendor} device in this"
                " process; check the driver and the visibility variables (`parity doctor`), or set"
                " platform=cpu."
            )

    def device(self, index: int = 0) -> "torch.device":
        """The GPU of a local index among the visible ones."""
        import torch

        count = torch.cuda.device_count()
        if not 0 <= index < count:
            seen = f"0 to {count - 1}" if count else "none"
            raise UnsupportedError(
                f"device {index} was asked, and {count} are visible to this process ({seen})"
            )
        return torch.device(self.device_type, index)

    def current_device(self) -> int:
        """The GPU of this thread."""
        import torch

        return torch.cuda.current_device()

    def device_count(self) -> int:
        """As the runtime counts; it may initialise it."""
        import torch

        return torch.cuda.device_count()

    def set_device(self, index: int) -> None:
        """Checks the index first, because a wrong one fails late and far away."""
        import torch

        torch.cuda.set_device(self.device(index))

    def synchronize(self, index: int | None = None) -> None:
        """Wait for every stream of the device."""
        import torch

        torch.cuda.synchronize(index)

    def seed(self, seed: int) -> None:
        """Seed the generators of the host and of every visible device."""
        import torch

        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)

    def set_allocator(self, settings: str) -> None:
        """Torch checks the words; what they mean is in its notes on memory management."""
        from torch import _C

        try:
            next(vars(_C)[name] for name in ALLOCATOR_SETTERS if name in vars(_C))(settings)
        except (StopIteration, RuntimeError, ValueError) as error:
            raise UnsupportedError(
                f"the allocator settings {settings!r} can't be applied on platform {self.name}:"
                f" {_first_line(error)}."
            ) from error

    def empty_cache(self) -> None:
        """Give cached blocks back to the driver."""
        import torch

        torch.cuda.empty_cache()

    def memory(self, index: int = 0) -> MemoryInfo:
        """Device memory, as the driver counts it: other processes included."""
        import torch

        free_bytes, total_bytes = torch.cuda.mem_get_info(self.device(index))
        return MemoryInfo(free_bytes=free_bytes, total_bytes=total_bytes)

    def device_name(self, index: int = 0) -> str:
        """As in `NVIDIA H100 80GB HBM3`."""
        import torch

        return torch.cuda.get_device_name(self.device(index))

    def collective_module(self) -> ModuleType | None:
        """cupy's bindings of NCCL (of RCCL in a ROCm build of cupy), where they are installed."""
        try:
            from cupy.cuda import nccl  # pyright: ignore[reportMissingImports]
        except ImportError:
            return None
        return cast("ModuleType", nccl)

    def ipc(self) -> "DeviceIpc":
        """Handles of the runtime, as torch shares storages between processes."""
        from parity.platforms.ipc import StorageIpc

        return StorageIpc(self.device_type)

    @contextmanager
    def profiler_range(self, name: str) -> Generator[None]:
        """An NVTX range (a roctx one in a ROCm build)."""
        import torch

        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

    def profiler_start(self) -> None:
        """The runtime's own switch, which Nsight and rocprof obey."""
        import torch

        torch.cuda.profiler.start()

    def profiler_stop(self) -> None:
        """See `profiler_start`."""
        import torch

        torch.cuda.profiler.stop()

    # ---- facts ---------------------------------------------------------------------------------

    def capability(self, index: int = 0) -> tuple[int, int] | None:
        """The compute capability."""
        import torch

        return torch.cuda.get_device_capability(self.device(index))

    def fast_dtypes(self) -> tuple[str, ...]:
        """bf16 where every visible device has units for it, else fp16."""
        capabilities = [self.capability(index) for index in range(self.device_count())]
        if all(each is not None and each >= BF16_CAPABILITY for each in capabilities):
            return ("bfloat16", "float16", "float32")
        return ("float16", "float32")

    def has_fp8(self, index: int = 0) -> bool | None:
        """From compute capability 8.9 on."""
        capability = self.capability(index)
        return None if capability is None else capability >= FP8_CAPABILITY

    def ray_noset_variables(self, ray_version: str | None) -> tuple[str, ...]:
        """One list, in every version."""
        return noset_variables(("CUDA_VISIBLE_DEVICES",), ray_version)

    def defaults(self, role: Role, environment: Mapping[str, str]) -> tuple[Default, ...]:
        """See each reason."""
        del environment
        return (CUMEM,) if role == "rollout" else ()

    def ipc_support(self, facts: Facts) -> Support:
        """CUDA IPC; slices of a card (MIG) don't have it."""
        listed = facts.variable("CUDA_VISIBLE_DEVICES") or ""
        if "MIG-" in listed:
            return Support(False, f"CUDA_VISIBLE_DEVICES={listed}: MIG slices have no CUDA IPC")
        return Support(True, "CUDA IPC")

    def telemetry(self) -> "Telemetry":
        """Through NVML."""
        from parity.platforms.telemetry.nvml import NvmlTelemetry

        return NvmlTelemetry()


CUMEM = Default(
    "NCCL_CUMEM_ENABLE",
    "0",
    "memory that the collective library maps itself outlives an engine that is put to sleep, and"
    " keeps its device memory from being given back",
)


def _is_gpu(text: str) -> bool:
    """Whether a file of the driver describes a GPU that it drives."""
    return re.search(r"^(Model|GPU UUID):\s*\S", text, re.MULTILINE) is not None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["this torch can't change them"])[0]
