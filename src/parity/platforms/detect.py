"""Which platform this process runs on: facts are gathered once, then a pure function decides.

The decision keeps apart what torch was built for and what is usable in this process, carries
its reasons, and never falls back in silence: a build whose devices can't be used runs on the
CPU with a warning, and a platform that was asked for by name is used or refused. Used by the
wiring through `load`; every name but the platform's stays in this folder.
"""

import logging
import os
from dataclasses import dataclass

from parity.errors import ConfigError
from parity.platforms import PLATFORMS
from parity.platforms.platform import Platform
from parity.registry import known

logger = logging.getLogger(__name__)
AUTO = "auto"
VARIABLE = "PARITY_PLATFORM"


@dataclass(frozen=True, slots=True)
class Facts:
    """What detection may look at; `num_devices` is None where the probe failed."""

    torch_version: str
    cuda_build: str | None  # CUDA version that torch was built for
    hip_build: str | None  # ROCm version that torch was built for
    num_devices: int | None  # accelerators usable in this process
    probe_error: str | None  # why the probe failed
    variable: str | None  # PARITY_PLATFORM


@dataclass(frozen=True, slots=True)
class Decision:
    """The platform's name, why, and what the user should know."""

    name: str
    reasons: tuple[str, ...]
    warning: str | None = None


def gather() -> Facts:
    """The facts of this process; imports torch and asks it for devices."""
    import torch

    num_devices: int | None = None
    probe_error: str | None = None
    try:
        num_devices = torch.cuda.device_count()
    except RuntimeError as error:
        probe_error = str(error).splitlines()[0]
    return Facts(
        torch_version=torch.__version__,
        cuda_build=torch.version.cuda,
        hip_build=torch.version.hip,
        num_devices=num_devices,
        probe_error=probe_error,
        variable=os.environ.get(VARIABLE, "").strip() or None,
    )


def detect(facts: Facts) -> Decision:
    """The platform of a process where none was asked for. Pure; never raises."""
    if facts.hip_build is not None:
        name, build = "rocm", f"torch {facts.torch_version} is built for ROCm {facts.hip_build}"
    elif facts.cuda_build is not None:
        name, build = "cuda", f"torch {facts.torch_version} is built for CUDA {facts.cuda_build}"
    else:
        return Decision("cpu", (f"torch {facts.torch_version} is built for the CPU only",))
    if facts.num_devices is None:
        usable = f"asking for devices failed: {facts.probe_error or 'no reason given'}"
    elif facts.num_devices == 0:
        usable = "no device is usable in this process"
    else:
        return Decision(name, (build, f"{facts.num_devices} usable in this process"))
    warning = f"{build}, but {usable}; running on the CPU. Set platform={name} to insist."
    return Decision("cpu", (build, usable), warning)


def choose(wanted: str, facts: Facts) -> Decision:
    """The decision for `platform=wanted`; PARITY_PLATFORM speaks where that is `auto`.

    Raises ConfigError for a name that isn't a platform.
    """
    for name, source in ((wanted, "platform"), (facts.variable, VARIABLE)):
        if name is None or name == AUTO:
            continue
        if name not in PLATFORMS.names():
            raise ConfigError(f"{source} is {name!r}; {known(name, [AUTO, *PLATFORMS.names()])}")
        return Decision(name, (f"{source}={name} was set",))
    return detect(facts)


def load(wanted: str = AUTO) -> Platform:
    """The platform for `platform=wanted`, with the decision logged once.

    Raises UnsupportedError where a platform that was asked for can't be used.
    """
    decision = choose(wanted, gather())
    logger.info("platform name=%s reason=%s", decision.name, "; ".join(decision.reasons))
    if decision.warning is not None:
        logger.warning("platform %s", decision.warning)
    implementation = PLATFORMS.load(decision.name)
    assert isinstance(implementation, type) and issubclass(implementation, Platform), decision.name
    return implementation()
