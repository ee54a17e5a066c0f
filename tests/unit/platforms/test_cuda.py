"""The two GPU platforms, against stand-ins for what torch says: no GPU is needed."""

import pytest
import torch

from parity.errors import UnsupportedError
from parity.platforms.cuda import CudaPlatform
from parity.platforms.rocm import RocmPlatform


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch):
    """Makes torch look like a build with devices."""

    def set_up(*, cuda=None, hip=None, capabilities=()):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 10 + device.index))

    return set_up


def test_each_platform_declines_the_build_of_the_other(pretend):
    pretend(hip="7.2", cuda="13.0", capabilities=[(9, 4)])
    with pytest.raises(UnsupportedError, match=r"built for ROCm 7\.2; set platform=rocm"):
        CudaPlatform()
    assert RocmPlatform().vendor == "amd"
    pretend(cuda="13.0", capabilities=[(9, 0)])
    with pytest.raises(UnsupportedError, match="built without ROCm"):
        RocmPlatform()
    assert CudaPlatform().vendor == "nvidia"


def test_a_build_without_devices_is_refused(pretend):
    pretend(cuda="13.0")
    with pytest.raises(UnsupportedError, match="no usable nvidia device"):
        CudaPlatform()


def test_devices_are_local_indexes(pretend):
    pretend(cuda="13.0", capabilities=[(9, 0), (9, 0)])
    platform = CudaPlatform()
    assert platform.device(1) == torch.device("cuda", 1)
    with pytest.raises(UnsupportedError, match=r"device 2 was asked, and 2 are visible"):
        platform.device(2)
    memory = platform.memory(1)
    assert (memory.free_bytes, memory.total_bytes) == (5, 11)


def test_bf16_needs_units_on_every_device(pretend):
    pretend(cuda="13.0", capabilities=[(9, 0), (8, 0)])
    assert CudaPlatform().fast_dtypes()[0] == "bfloat16"
    pretend(cuda="13.0", capabilities=[(9, 0), (7, 5)])
    assert CudaPlatform().fast_dtypes() == ("float16", "float32")
