"""Finds names that were meant to be a variable that Parity, Ray or a vendor reads, and aren't.

A misspelt name has no effect and says nothing; so names inside known prefixes are compared with
the known ones. Used by `detect.py`.
"""

from collections.abc import Iterable, Mapping, Sequence

from parity.registry import nearest

# Every known name of a prefix that belongs to one purpose: an unknown one is worth a line.
OWN_PREFIXES = ("RAY_EXPERIMENTAL_NOSET_",)
# Prefixes with many other names: only what looks like a known one is worth a line.
SHARED_PREFIXES = (
    "CUDA_", "HIP_", "ROCR_", "ASCEND_", "GPU_", "NVIDIA_", "ZE_", "PARITY_", "RAY_ACCEL_",
)  # fmt: skip
LIKENESS = 0.85

PARITY_NAMES = (
    "PARITY_PLATFORM",
    "PARITY_PLUGINS",
    "PARITY_DECISION",
    "PARITY_RUNS_DIR",
    "PARITY_TRACEBACK",
    "PARITY_CI_HISTORY",
    "PARITY_CI_METRICS",
    "PARITY_CI_OWNER",
    "PARITY_CI_SUITE",
)
# Read by container runtimes and other layers, not by the device runtimes themselves.
OTHER_NAMES = (
    "NVIDIA_VISIBLE_DEVICES",
    "ASCEND_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO",
)


def misspelt(environment: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    """One sentence for every variable that looks like one of `names` and is none, sorted."""
    known = sorted({*names, *PARITY_NAMES, *OTHER_NAMES})
    said: list[str] = []
    for name in sorted(environment):
        if name in known:
            continue
        guess = _meant(name, known)
        if guess is not None:
            said.append(f"{name} is set, and nothing reads it; did you mean {guess}?")
        elif name.startswith(OWN_PREFIXES):
            said.append(f"{name} is set, and no version of Ray reads it; unset it.")
    return tuple(said)


def _meant(name: str, known: Sequence[str]) -> str | None:
    upper = name.upper()
    if upper in known:
        return upper
    guess = nearest(upper, known)
    if guess is None:
        return None
    if upper.startswith(OWN_PREFIXES):
        return guess if guess.startswith(OWN_PREFIXES) else None
    if not upper.startswith(SHARED_PREFIXES):
        return None
    return guess if _is_close(upper, guess) else None


def _is_close(name: str, guess: str) -> bool:
    from difflib import SequenceMatcher

    return SequenceMatcher(a=name, b=guess).ratio() >= LIKENESS


def without_effect(
    environment: Mapping[str, str], own: Iterable[str], foreign: Iterable[str], platform: str
) -> tuple[str, ...]:
    """One sentence for every visibility variable of another platform that is set, sorted."""
    names = sorted(set(foreign) - set(own))
    return tuple(
        f"{name}={environment[name]} is set, and has no effect on platform {platform}."
        for name in names
        if name in environment
    )
