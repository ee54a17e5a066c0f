"""What this process holds on a device, and how it hands back what it has freed.

Used by the engine and the trainer at the end of a turn, and by who measures it. Freed memory
stays with the allocator: with torch's caching one on an accelerator, in the C library's heap on a
CPU, where a freed block of less than 32 MiB may lie between living ones. Other processes see it
only after `give_back`.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache
from typing import cast

import psutil
import torch


def give_back(device: torch.device) -> None:
    """Hand memory that was freed on `device` back to the driver, or to the kernel."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()
    elif (trim := _malloc_trim()) is not None:
        trim(0)


def held_bytes(device: torch.device) -> int:
    """Memory that this process holds on `device`; on a CPU all that is resident."""
    if device.type != "cpu":
        return int(torch.get_device_module(device).memory_reserved(device))
    return int(psutil.Process().memory_info().rss)


def release_pages(address: int, size_bytes: int) -> None:
    """Let the kernel take the whole pages of a range of memory; read again, they are zeros.

    Raises OSError where the kernel refuses (locked memory).
    """
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (address + size_bytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if size <= 0:
        return
    advise = ctypes.CDLL(None, use_errno=True).madvise
    if advise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED):
        code = ctypes.get_errno()
        raise OSError(code, f"{size} bytes can't be given up: {os.strerror(code)}")


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """The C library's `malloc_trim`; None where it has none (it isn't glibc)."""
    return cast("Callable[[int], int] | None", getattr(ctypes.CDLL(None), "malloc_trim", None))
