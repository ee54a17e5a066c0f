"""AMD GPUs as a platform, through torch's ROCm build, which answers to the CUDA names.

The device calls are those of `cuda.py`; every fact is AMD's own.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from parity.platforms.cuda import CUMEM, CudaPlatform
from parity.platforms.facts import Facts
from parity.platforms.machine import kernel
from parity.platforms.platform import Default, Role, Support
from parity.platforms.tables.ray_variables import (
    REFUSES_ROCR_ALONE,
    noset_variables,
    parse_version,
)
from parity.platforms.visibility.compose import Rules

if TYPE_CHECKING:
    from parity.platforms.telemetry.telemetry import Telemetry

KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
DRIVER_VERSION = Path("/sys/module/amdgpu/version")
ROCM_VERSION = Path("/opt/rocm/.info/version")
FP8_GFX = (9, 4)  # first gfx generation of Instinct (MI300) with fp8 units
FP8_FIRST_RDNA = 12  # RDNA 4 has them, RDNA 2 and 3 (10 and 11) don't


class RocmPlatform(CudaPlatform):
    """Computes on AMD GPUs; RCCL stands behind the backend name of NCCL."""

    name = "rocm"
    vendor = "amd"
    device_type = "cuda"
    precedence = 50
    torch_plugins = ()
    is_default_build = False
    smi_tools = ("amd-smi", "rocm-smi")
    count_sources = ("kfd",)
    variable_prefixes = ("HIP_", "ROCR_", "GPU_", "HSA_", "ROCM_", "CUDA_", "NCCL_", "RCCL_")
    device_nodes = ("/dev/kfd", "/dev/dri/renderD*")
    visibility = Rules(
        outer="ROCR_VISIBLE_DEVICES",
        inner=("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        needs_ascending_ids=False,
        hides_after_negative=True,
        is_empty_ambiguous=True,
        nothing="-1",
    )
    collective_backends = ("nccl", "flagcx")
    ray_resource = "GPU"
    has_thread_budget = False
    has_graph_capture = True
    has_bf16_reduce = True

    @classmethod
    def built_for(cls, facts: Facts) -> str | None:
        """A HIP build, whatever it says of CUDA."""
        if facts.torch is None or facts.torch.hip is None:
            return None
        return f"ROCm {facts.torch.hip}"

    @classmethod
    def remedy(cls) -> str:
        """ROCm builds have an index of their own."""
        return "install a ROCm build of torch (pytorch.org lists the index of each version)"

    @classmethod
    def count_devices(cls) -> Mapping[str, int | None]:
        """Nodes of the driver's topology that have SIMD units; those of CPUs have none."""
        return kernel.count_devices("kfd", KFD_NODES, "*/properties", _is_gpu)

    @classmethod
    def read_versions(cls) -> Mapping[str, str | None]:
        """The kernel driver's and the toolkit's."""
        return {
            **kernel.read_version("amdgpu", DRIVER_VERSION, r"[0-9][0-9.]*"),
            **kernel.read_version("rocm", ROCM_VERSION, r"[0-9]+\.[0-9.]*[0-9]"),
        }

    @classmethod
    def advice(cls, facts: Facts) -> tuple[str, ...]:
        """Lists that Ray or this ROCm read otherwise."""
        said: list[str] = []
        ray = parse_version(facts.versions.get("ray"))
        names = facts.environment
        is_alone = "ROCR_VISIBLE_DEVICES" in names and "HIP_VISIBLE_DEVICES" not in names
        if is_alone and ray is not None and ray >= REFUSES_ROCR_ALONE:
            said.append(
                f"Ray {facts.versions['ray']} refuses ROCR_VISIBLE_DEVICES without"
                " HIP_VISIBLE_DEVICES; use HIP_VISIBLE_DEVICES alone."
            )
        if "GPU_DEVICE_ORDINAL" in names:
            said.append(
                f"GPU_DEVICE_ORDINAL={names['GPU_DEVICE_ORDINAL']} is set, which some versions of"
                " ROCm compose with the other lists; use HIP_VISIBLE_DEVICES instead."
            )
        return tuple(said)

    def capability(self, index: int = 0) -> tuple[int, int] | None:
        """(major, minor) of the gfx architecture: (9, 4) for gfx942. Not NVIDIA's numbers."""
        return super().capability(index)

    def fast_dtypes(self) -> tuple[str, ...]:
        """bf16 on every GPU that current ROCm supports."""
        return ("bfloat16", "float16", "float32")

    def has_fp8(self, index: int = 0) -> bool | None:
        """From MI300 (gfx94x) on in the Instinct line, from gfx12 on in the Radeon one."""
        capability = self.capability(index)
        if capability is None:
            return None
        major = capability[0]
        return capability >= FP8_GFX if major == FP8_GFX[0] else major >= FP8_FIRST_RDNA

    def ray_noset_variables(self, ray_version: str | None) -> tuple[str, ...]:
        """CUDA's too: Ray takes a node where it finds no AMD card for an NVIDIA one."""
        lists = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        return noset_variables(lists, ray_version)

    def defaults(self, role: Role, environment: Mapping[str, str]) -> tuple[Default, ...]:
        """See each reason."""
        del environment
        every = (NO_SCRATCH_RECLAIM, NO_OVERRIDE_ON_ZERO)
        if role == "driver":
            return every
        return (*every, LEGACY_IPC, *((CUMEM, AITER) if role == "rollout" else ()))

    def ipc_support(self, facts: Facts) -> Support:
        """HIP IPC, whose handles carry the exporter's index; `ipc.py` replaces it."""
        del facts
        return Support(True, "HIP IPC")

    def telemetry(self) -> "Telemetry":
        """Through AMD SMI."""
        from parity.platforms.telemetry.amd import AmdTelemetry

        return AmdTelemetry()


NO_SCRATCH_RECLAIM = Default(
    "HSA_NO_SCRATCH_RECLAIM",
    "1",
    "older firmware and ROCm fail in the first collective (ncclSystemError) where scratch memory"
    " is reclaimed; costs device memory, set 0 where your stack doesn't need it",
)
NO_OVERRIDE_ON_ZERO = Default(
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
    "0",
    "Ray must not hide every device from an actor that asks it for none because its server takes"
    " them itself",
)
LEGACY_IPC = Default(
    "HSA_ENABLE_IPC_MODE_LEGACY",
    "1",
    "device IPC over dma-buf keeps device memory from being given back (ROCm 7.2)",
)
AITER = Default(
    "SGLANG_USE_AITER",
    "1",
    "SGLang computes with AMD's kernel library; set 0 where its attention fails",
)


def _is_gpu(text: str) -> bool:
    match = re.search(r"^simd_count\s+([0-9]+)\s*$", text, re.MULTILINE)
    return match is not None and int(match[1]) > 0
