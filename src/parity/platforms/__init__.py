"""Platforms by name; `platform.py` is the contract, `detect.py` decides."""

from parity.registry import Registry

PLATFORMS = Registry(
    "platforms",
    {
        "cpu": "parity.platforms.cpu:CpuPlatform",
        "cuda": "parity.platforms.cuda:CudaPlatform",
        "rocm": "parity.platforms.rocm:RocmPlatform",
    },
)
