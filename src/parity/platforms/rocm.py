"""AMD GPUs as a platform, through torch's ROCm build, which answers to the CUDA names."""

import torch

from parity.errors import UnsupportedError
from parity.platforms.cuda import CudaPlatform


class RocmPlatform(CudaPlatform):
    """Computes on AMD GPUs; RCCL stands behind the backend name of NCCL."""

    name = "rocm"
    vendor = "amd"

    def _require_build(self) -> None:
        if torch.version.hip is None:
            raise UnsupportedError(
                f"platform=rocm, but torch {torch.__version__} is built without ROCm;"
                " install a ROCm build of torch, or choose another platform."
            )

    def fast_dtypes(self) -> tuple[str, ...]:
        """bf16 on every GPU that current ROCm supports."""
        return ("bfloat16", "float16", "float32")
