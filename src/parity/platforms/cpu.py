"""The CPU as a platform: no accelerator, the reference that every other one is compared with."""

import os
from pathlib import Path

import torch

from parity.errors import UnsupportedError
from parity.platforms.platform import MemoryInfo, Platform

MEMINFO = Path("/proc/meminfo")


class CpuPlatform(Platform):
    """Computes on the host; fp32, because narrower types are emulated on most CPUs."""

    name = "cpu"
    vendor = "generic"
    device_type = "cpu"
    collective_backend = "gloo"
    has_thread_budget = True

    def device(self, index: int = 0) -> torch.device:
        """The one CPU device; only index 0 exists."""
        if index != 0:
            raise UnsupportedError(f"the cpu platform has one device, and device {index} was asked")
        return torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""

    def seed(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def memory(self, index: int = 0) -> MemoryInfo:
        """Host memory: what can be had without swapping, and the total."""
        if MEMINFO.is_file():
            return parse_meminfo(MEMINFO.read_text())
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(
            free_bytes=os.sysconf("SC_AVPHYS_PAGES") * page_bytes,
            total_bytes=os.sysconf("SC_PHYS_PAGES") * page_bytes,
        )

    def fast_dtypes(self) -> tuple[str, ...]:
        """Only fp32; bf16 without AMX or AVX-512 is 8 to 270 times slower."""
        return ("float32",)


def parse_meminfo(text: str) -> MemoryInfo:
    """Free and total bytes from the text of /proc/meminfo, which counts in KiB."""
    values = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if ":" in line}
    return MemoryInfo(
        free_bytes=int(values["MemAvailable"]) * 1024, total_bytes=int(values["MemTotal"]) * 1024
    )
