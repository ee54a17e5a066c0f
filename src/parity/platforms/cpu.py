"""The CPU as a platform: no accelerator, the reference that every other one is compared with."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from parity.errors import UnsupportedError
from parity.platforms.facts import Facts
from parity.platforms.platform import Default, MemoryInfo, Platform, Role, Support

if TYPE_CHECKING:
    import torch

    from parity.platforms.telemetry.telemetry import Telemetry

MEMINFO = Path("/proc/meminfo")
CPUINFO = Path("/proc/cpuinfo")


class CpuPlatform(Platform):
    """Computes on the host; fp32, because narrower types are emulated on most CPUs."""

    name = "cpu"
    vendor = "cpu"
    device_type = "cpu"
    precedence = 0
    torch_plugins = ()
    is_default_build = False
    smi_tools = ()
    count_sources = ()
    variable_prefixes = ()
    device_nodes = ()
    visibility = None
    collective_backends = ("gloo",)
    ray_resource = None
    has_thread_budget = True
    has_graph_capture = False
    has_bf16_reduce = True

    @classmethod
    def built_for(cls, facts: Facts) -> str | None:
        """Every torch computes on the CPU."""
        return None if facts.torch is None else "CPU"

    @classmethod
    def remedy(cls) -> str:
        """Only where torch is missing altogether."""
        return "install torch"

    @classmethod
    def count_devices(cls) -> Mapping[str, int | None]:
        """There is one, always."""
        return {}

    @classmethod
    def read_versions(cls) -> Mapping[str, str | None]:
        """No driver, no toolkit."""
        return {}

    @property
    def module(self) -> ModuleType:
        """`torch.cpu`."""
        import torch

        return torch.cpu

    def require_usable(self) -> None:
        """A CPU always is."""

    def device(self, index: int = 0) -> "torch.device":
        """The one CPU device; only index 0 exists."""
        import torch

        self._check(index)
        return torch.device("cpu")

    def current_device(self) -> int:
        """The only one."""
        return 0

    def device_count(self) -> int:
        """One."""
        return 1

    def set_device(self, index: int) -> None:
        """Nothing to do for 0; there is no other."""
        self._check(index)

    def synchronize(self, index: int | None = None) -> None:
        """Nothing is queued on a CPU."""
        if index is not None:
            self._check(index)

    def seed(self, seed: int) -> None:
        """Seed torch's generator."""
        import torch

        torch.manual_seed(seed)

    def set_allocator(self, settings: str) -> None:
        """There is no caching allocator to set."""
        raise UnsupportedError(
            f"the allocator settings {settings!r} can't be applied on platform cpu, which has no"
            " caching allocator; remove them."
        )

    def empty_cache(self) -> None:
        """The host's allocator keeps no cache that torch could empty."""

    def memory(self, index: int = 0) -> MemoryInfo:
        """Host memory: what can be had without swapping, and the total."""
        self._check(index)
        if MEMINFO.is_file():
            return parse_meminfo(MEMINFO.read_text())
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(
            free_bytes=os.sysconf("SC_AVPHYS_PAGES") * page_bytes,
            total_bytes=os.sysconf("SC_PHYS_PAGES") * page_bytes,
        )

    def capability(self, index: int = 0) -> tuple[int, int] | None:
        """CPUs have no such number."""
        self._check(index)

    def device_name(self, index: int = 0) -> str:
        """As the kernel names the processor."""
        self._check(index)
        lines = CPUINFO.read_text().splitlines() if CPUINFO.is_file() else []
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else "CPU"

    def fast_dtypes(self) -> tuple[str, ...]:
        """Only fp32; bf16 without AMX or AVX-512 is 8 to 270 times slower."""
        return ("float32",)

    def has_fp8(self, index: int = 0) -> bool | None:
        """None of today's does."""
        self._check(index)
        return False

    def ray_noset_variables(self, ray_version: str | None) -> tuple[str, ...]:
        """Ray hides no CPU from a worker."""
        del ray_version
        return ()

    def defaults(self, role: Role, environment: Mapping[str, str]) -> tuple[Default, ...]:
        """None; threads are set in each process (`threads` in the run file)."""
        del role, environment
        return ()

    def ipc_support(self, facts: Facts) -> Support:
        """Host memory is shared by name instead."""
        del facts
        return Support(False, "a CPU has no device memory; host memory is shared instead")

    def profiler_range(self, name: str) -> AbstractContextManager[None]:
        """No vendor profiler."""
        del name
        return nullcontext()

    def profiler_start(self) -> None:
        """No vendor profiler."""

    def profiler_stop(self) -> None:
        """No vendor profiler."""

    def telemetry(self) -> "Telemetry":
        """Through psutil."""
        from parity.platforms.telemetry.host import HostTelemetry

        return HostTelemetry()

    def _check(self, index: int) -> None:
        if index != 0:
            raise UnsupportedError(f"the cpu platform has one device, and device {index} was asked")


def parse_meminfo(text: str) -> MemoryInfo:
    """Free and total bytes from the text of /proc/meminfo, which counts in KiB."""
    values = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if ":" in line}
    return MemoryInfo(
        free_bytes=int(values["MemAvailable"]) * 1024, total_bytes=int(values["MemTotal"]) * 1024
    )
