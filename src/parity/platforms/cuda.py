"""NVIDIA GPUs as a platform, through torch's CUDA build.

A ROCm build of torch answers to the same names, so this platform declines there; `rocm.py`
takes it.
"""

import torch

from parity.errors import UnsupportedError
from parity.platforms.platform import MemoryInfo, Platform

BF16_CAPABILITY = (8, 0)  # first compute capability (Ampere) with bf16 units


class CudaPlatform(Platform):
    """Computes on NVIDIA GPUs."""

    name = "cuda"
    vendor = "nvidia"
    device_type = "cuda"
    collective_backend = "nccl"
    has_thread_budget = False

    def __init__(self) -> None:
        self._require_build()
        if not torch.cuda.is_available():
            raise UnsupportedError(
                f"platform={self.name}, but torch finds no usable {self.vendor} device in this"
                " process; check the driver and the visibility variables, or set platform=cpu."
            )

    def _require_build(self) -> None:
        if torch.version.hip is not None:
            raise UnsupportedError(
                f"platform=cuda, but this torch is built for ROCm {torch.version.hip};"
                " set platform=rocm."
            )
        if torch.version.cuda is None:
            raise UnsupportedError(
                f"platform=cuda, but torch {torch.__version__} is built without CUDA;"
                " install a CUDA build of torch, or set platform=cpu."
            )

    def device(self, index: int = 0) -> torch.device:
        """The GPU of a local index among the visible ones."""
        count = torch.cuda.device_count()
        if not 0 <= index < count:
            raise UnsupportedError(
                f"device {index} was asked, and {count} are visible to this process"
                f" (0 to {count - 1})"
            )
        return torch.device("cuda", index)

    def synchronize(self) -> None:
        """Wait for every stream of the current device."""
        torch.cuda.synchronize()

    def seed(self, seed: int) -> None:
        """Seed the generators of the host and of every visible device."""
        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)

    def memory(self, index: int = 0) -> MemoryInfo:
        """Device memory, as the driver counts it: other processes included."""
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.device(index))
        return MemoryInfo(free_bytes=free_bytes, total_bytes=total_bytes)

    def fast_dtypes(self) -> tuple[str, ...]:
        """bf16 where every visible device has units for it, else fp16."""
        devices = range(torch.cuda.device_count())
        if all(torch.cuda.get_device_capability(i) >= BF16_CAPABILITY for i in devices):
            return ("bfloat16", "float16", "float32")
        return ("float16", "float32")
