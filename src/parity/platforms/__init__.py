"""Platforms by name; `platform.py` is the contract, `detect.py` decides.

Those that ship are in this table; `plugins.py` adds those of other packages.
"""

from parity.registry import Registry

PLATFORMS = Registry(
    "platforms",
    {
        "cpu": "parity.platforms.cpu:CpuPlatform",
        "cuda": "parity.platforms.cuda:CudaPlatform",
        "npu": "parity.platforms.npu:NpuPlatform",
        "rocm": "parity.platforms.rocm:RocmPlatform",
    },
)
SHIPPED = ("cpu", "cuda", "npu", "rocm")
