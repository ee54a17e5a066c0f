"""Gathers the facts of this machine and process, without initialising a device runtime.

Torch's own ways of asking aren't used: `torch.cuda.is_available()` calls `cudaGetDeviceCount`,
which initialises the driver and breaks processes that are forked later (unless
PYTORCH_NVML_BASED_CUDA_CHECK=1, and even then where NVML doesn't answer), and
`torch.cuda.device_count()` falls back to the same call. Instead: the build from torch's
`version.py`, devices from the vendors' tools, which are processes of their own, and from files of
the kernel drivers. Whether the runtime then agrees is found by the process that computes
(`Platform.require_usable`). Used by `detect.py` and `parity doctor`.
"""

import glob
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoints, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from typing import TypeVar, cast

from parity.platforms.decision import VARIABLE as DECISION
from parity.platforms.facts import Facts
from parity.platforms.machine.torch_build import read_torch_build
from parity.platforms.platform import Platform
from parity.platforms.plugins import all_platforms
from parity.platforms.smi import probe_all

log = logging.getLogger(__name__)
DEADLINE_S = 10.0  # for all tools together, which are asked at the same time
TORCH_BACKENDS = "torch.backends"  # the group by which torch itself finds its backends
PREFIXES = (
    "PARITY_", "RAY_EXPERIMENTAL_", "RAY_ACCEL_", "SGLANG_", "VLLM_", "NCCL_", "PYTORCH_",
    "TORCH_", "OMP_", "CUDA_", "HIP_", "ROCR_", "ASCEND_", "GPU_",
)  # fmt: skip
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY", "ACCESS_KEY")
Found = TypeVar("Found")


def collect(*, probe_tools: bool = True, deadline_s: float = DEADLINE_S) -> Facts:
    """The facts of this process; takes up to `deadline_s` where a vendor tool hangs.

    `probe_tools=False` runs no vendor tool, for a process that verifies a decision.
    """
    kinds = tuple(all_platforms().values())
    counts: dict[str, int | None] = {}
    versions: dict[str, str | None] = dict(_package_version("ray"))
    for kind in kinds:
        counts.update(
            _guarded(kind, lambda kind=kind: _counts(kind), dict.fromkeys(kind.count_sources))
        )
        versions = {**_guarded(kind, lambda kind=kind: _versions(kind), {}), **versions}
    return Facts(
        torch=read_torch_build(),
        plugins=read_plugins(kinds, entry_points(group=TORCH_BACKENDS)),
        environment=relevant(os.environ, kinds),
        smi=probe_all(deadline_s=deadline_s) if probe_tools else (),
        device_counts=dict(sorted(counts.items())),
        device_nodes=_nodes(pattern for kind in kinds for pattern in kind.device_nodes),
        versions=dict(sorted(versions.items())),
    )


def relevant(environment: Mapping[str, str], kinds: Iterable[type[Platform]]) -> dict[str, str]:
    """The variables that say something about devices, sorted; nothing that looks like a secret."""
    prefixes = (*PREFIXES, *(prefix for kind in kinds for prefix in kind.variable_prefixes))
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.upper().startswith(prefixes)
        and name != DECISION
        and not any(word in name.upper() for word in SECRETS)
    }


def read_plugins(kinds: Iterable[type[Platform]], points: EntryPoints) -> dict[str, str | None]:
    """Packages that bring a torch backend, with their versions, sorted; none is imported.

    A folder of the right name that isn't a package doesn't count.
    """
    found: dict[str, str | None] = {}
    for name in {name for kind in kinds for name in kind.torch_plugins}:
        if _is_package(name):
            found[name] = _package_version(name).get(name)
    for point in points:
        owner = None if point.dist is None else point.dist.version
        found.setdefault(point.module.partition(".")[0], owner)
    return dict(sorted(found.items()))


def _is_package(name: str) -> bool:
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _package_version(name: str) -> dict[str, str | None]:
    try:
        return {name: version(name)}
    except PackageNotFoundError:
        return {}


def _nodes(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({path for pattern in patterns for path in glob.glob(pattern)}))  # noqa: PTH207


def _counts(kind: type[Platform]) -> dict[str, int | None]:
    """What a platform counts, or TypeError for what isn't a count of one of its own sources."""
    found = dict(kind.count_devices())
    for source, number in found.items():
        is_count = number is None or (type(number) is int and number >= 0)
        if source not in kind.count_sources or not is_count:
            raise TypeError(f"count_devices gives {source!r}: {number!r}")
    return found


def _versions(kind: type[Platform]) -> dict[str, str | None]:
    found = dict(kind.read_versions())
    for name, text in cast("dict[object, object]", found).items():
        if not isinstance(name, str) or not isinstance(text, str | None):
            raise TypeError(f"read_versions gives {name!r}: {text!r}")
    return found


def _guarded(kind: type[Platform], call: Callable[[], Found], fallback: Found) -> Found:
    """What a platform's own reader says; a reader that fails is logged and leaves no fact."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # noqa: BLE001 (other people's code; facts never stop a start)
        log.warning("event=facts_failed platform=%s error=%r", kind.name, error)
        return fallback
