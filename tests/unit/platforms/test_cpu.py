"""The CPU platform: one device, seeded, with honest memory."""

import pytest
import torch

from parity.errors import UnsupportedError
from parity.platforms.cpu import CpuPlatform, parse_meminfo


def test_there_is_one_device():
    platform = CpuPlatform()
    assert platform.device() == torch.device("cpu")
    with pytest.raises(UnsupportedError, match="device 1"):
        platform.device(1)


def test_seeding_makes_draws_repeat():
    platform = CpuPlatform()
    platform.seed(3)
    first = torch.rand(4)
    platform.seed(3)
    assert torch.equal(first, torch.rand(4))
    platform.seed(4)
    assert not torch.equal(first, torch.rand(4))


def test_memory_is_what_can_be_had_and_the_total():
    text = "MemTotal:  2048 kB\nMemFree:  1 kB\nMemAvailable:  1024 kB\nHugePages_Total: 0\n"
    found = parse_meminfo(text)
    assert (found.free_bytes, found.total_bytes) == (1024 * 1024, 2048 * 1024)
    here = CpuPlatform().memory()
    assert 0 < here.free_bytes <= here.total_bytes


def test_only_fp32_is_fast_and_threads_are_the_compute():
    platform = CpuPlatform()
    assert platform.fast_dtypes() == ("float32",)
    assert platform.has_thread_budget
    platform.synchronize()


def test_there_is_no_cache_no_ipc_and_no_second_device():
    platform = CpuPlatform()
    with pytest.raises(UnsupportedError, match="has no caching allocator; remove them"):
        platform.set_allocator("expandable_segments:True")
    with pytest.raises(UnsupportedError, match="has no device IPC"):
        platform.ipc()
    for call in (platform.set_device, platform.synchronize, platform.memory, platform.device_name):
        with pytest.raises(UnsupportedError, match="device 1"):
            call(1)
    assert platform.device_name()
    assert platform.capability() is None
