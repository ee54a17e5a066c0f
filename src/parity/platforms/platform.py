"""The contract of a platform: one vendor's accelerators behind one small set of calls.

Hardware names appear in this folder and nowhere else; other code asks for a capability.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of one device (of the host on a CPU platform)."""

    free_bytes: int
    total_bytes: int


class Platform(ABC):
    """What the rest of Parity may know about the hardware."""

    name: str  # as users write it: cpu, cuda, rocm
    vendor: str  # nvidia, amd, generic
    device_type: str  # torch device type
    collective_backend: str  # torch.distributed backend
    has_thread_budget: bool  # CPU threads are the compute, to be split between the roles

    @abstractmethod
    def device(self, index: int = 0) -> "torch.device":
        """The torch device of a local index."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished what was queued."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed every generator of this process."""

    @abstractmethod
    def memory(self, index: int = 0) -> MemoryInfo:
        """Free and total bytes."""

    @abstractmethod
    def fast_dtypes(self) -> tuple[str, ...]:
        """The dtypes that compute at full speed here, best first."""
