"""Audits estimates against measured times, and warns of estimates that nobody made.

Used by the plan (placeholders) and by `parity ci audit-times`. Times are kept apart by backend
and suite: the same test takes other times on other hardware.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from parity.ci.model import Registration

PLACEHOLDERS = 3  # tests of one suite with the very same estimate, and
PLACEHOLDER_SHARE = 0.05  # of its long tests: among thousands, equal measured times are chance
PLACEHOLDER_S = 60.0  # shorter ones don't unbalance a shard
TOLERANCE = 0.25  # of the measured time
TOLERANCE_S = 30.0  # smaller differences don't matter to a shard
NEWEST = 10  # measured times that count
HEADROOM = 1.1  # of the median: machines differ a little


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured run of a test that passed at its first attempt."""

    path: str
    backend: str
    suite: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """An estimate that the measured times don't bear out, and a better one."""

    registration: Registration
    median_s: float
    num_runs: int
    est_time_s: float  # the proposed literal

    @property
    def text(self) -> str:
        """One line for people."""
        own = self.registration
        return (
            f"{own.where}: est_time {own.est_time_s:g} -> {self.est_time_s:g}"
            f" ({own.suite}: median {self.median_s:.0f} s of {self.num_runs} runs)"
        )


@dataclass(frozen=True, slots=True)
class Audit:
    """The estimates that are off, the tests never measured, and the times of unknown tests."""

    proposals: tuple[Proposal, ...]
    num_checked: int
    unmeasured: tuple[Registration, ...]
    strangers: tuple[str, ...]


def audit(registrations: Sequence[Registration], measured: Sequence[Measured]) -> Audit:
    """Compare each estimate with the median of the newest times; `measured` is oldest first."""
    times: dict[str, list[float]] = {}
    for each in measured:
        times.setdefault(f"{each.backend}/{each.suite}:{each.path}", []).append(each.time_s)
    proposals: list[Proposal] = []
    unmeasured: list[Registration] = []
    for registration in registrations:
        own = times.pop(registration.test_id, [])[-NEWEST:]
        if not own:
            unmeasured.append(registration)
        elif (found := _proposal(registration, own)) is not None:
            proposals.append(found)
    checked = len(registrations) - len(unmeasured)
    return Audit(tuple(proposals), checked, tuple(unmeasured), tuple(sorted(times)))


def _proposal(registration: Registration, times: Sequence[float]) -> Proposal | None:
    middle = median(times)
    off = abs(registration.est_time_s - middle)
    if off <= max(TOLERANCE * middle, TOLERANCE_S):
        return None
    return Proposal(registration, middle, len(times), rounded(HEADROOM * middle))


def rounded(time_s: float) -> float:
    """A number that people would write: up to a multiple of 1, 5, 10 or 60 seconds."""
    steps = ((30, 1), (120, 5), (600, 10), (math.inf, 60))
    step = next(step for most, step in steps if time_s <= most)
    return float(max(1, math.ceil(time_s / step) * step))


def placeholder_warnings(registrations: Sequence[Registration]) -> list[str]:
    """A warning for each estimate that many long tests of a suite share, to the second."""
    groups: dict[tuple[str, float], list[Registration]] = {}
    for each in registrations:
        if each.est_time_s >= PLACEHOLDER_S and not each.is_implicit and each.disabled is None:
            groups.setdefault((each.suite, each.est_time_s), []).append(each)
    long: Counter[str] = Counter()
    for (suite, _), group in groups.items():
        long[suite] += len(group)
    return [
        f"{suite}: {len(group)} tests have the same estimate of {est_time_s:g} s"
        f" ({_shown(group)}); measure them (`parity ci audit-times`), or shards are unbalanced."
        for (suite, est_time_s), group in sorted(groups.items())
        if len(group) >= max(PLACEHOLDERS, PLACEHOLDER_SHARE * long[suite])
    ]


def _shown(group: Sequence[Registration]) -> str:
    paths = [each.where for each in group]
    return ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
