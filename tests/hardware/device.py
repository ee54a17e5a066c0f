"""Which device a hardware test runs on; without one it is skipped, or fails inside hardware CI.

`parity ci run` sets PARITY_PLATFORM for each backend. A lane whose device is missing must not look
like a lane that passed, so there it is a failure. PARITY_PLATFORM=cpu runs the same test here, to
try the test itself.
"""

import os

import pytest
import torch


def platform_name() -> str:
    """The platform of this machine's accelerator, as `platform=` of a run names it."""
    stated = os.environ.get("PARITY_PLATFORM")
    if stated:
        return stated
    if torch.cuda.is_available():
        return "rocm" if torch.version.hip else "cuda"
    pytest.skip("no accelerator here; `parity ci run` runs this file on a machine that has one")


def torch_device(index: int = 0) -> torch.device:
    """A device of that platform; fails where it can't compute."""
    name = platform_name()
    kind = "cuda" if name == "rocm" else name
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, index)
    torch.ones(1, device=device)
    return device


def num_devices() -> int:
    """How many devices this process sees."""
    name = platform_name()
    return torch.accelerator.device_count() if name != "cpu" else 2
