"""The contract of history stores: what earlier runs measured, and which of it is trusted.

A run writes once, all at once. A value is trusted when its own gate let it pass (or the series
was new) and nobody has marked its run untrusted; so a gate that is out of order on one metric
keeps the others' history growing. Used by the judge (reads) and by the nightly and weekly runs on
the main branch (write), which `may_write` decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from parity.errors import ParityError


class HistoryError(ParityError):
    """The history store can't be reached, read or written."""


@dataclass(frozen=True, slots=True)
class Series:
    """What names the values that may be compared with each other."""

    test: str  # path of the test file
    backend: str
    suite: str
    metric: str
    at: str  # "last", "mean", "step 12"


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series."""

    value: float
    run_id: str
    commit: str
    is_trusted: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """Who measured: one shard of one CI run."""

    run_id: str  # the CI service's run and attempt; unique together with suite and shard
    suite: str
    shard: int
    backend: str
    commit: str
    branch: str
    cadence: str
    started_at: datetime  # with a time zone

    @property
    def key(self) -> str:
        """What names the run in the store."""
        return f"{self.run_id}/{self.suite}/{self.shard}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A value to be stored; always finite."""

    series: Series
    value: float
    verdict: str
    is_trusted: bool


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """How one test file went, for flake rates and estimates of time."""

    test: str
    outcome: str
    num_attempts: int
    time_s: float

    __test__ = False  # not a class of pytest's


@dataclass(frozen=True, slots=True)
class Flakes:
    """How often a test passed, and how often only after a retry."""

    test: str
    suite: str
    num_passes: int
    num_flaky: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Which values to mark; exactly one is given."""

    run_id: str | None = None
    commit: str | None = None
    test: str | None = None  # all values of a test so far: its series begin anew

    def __post_init__(self) -> None:
        given = [v for v in (self.run_id, self.commit, self.test) if v is not None]
        if len(given) != 1:
            raise HistoryError(
                f"{len(given)} of run, commit and test are given; give exactly one to say which"
                " values are meant."
            )


class History(Protocol):
    """A history store. Every call has a deadline and raises HistoryError."""

    def check(self) -> None:
        """Raise HistoryError unless the store can be reached and has its tables."""
        ...

    def trusted(self, series: Series, *, limit: int) -> list[Point]:
        """The newest `limit` trusted values, oldest first."""
        ...

    def trusted_places(self, series: Series, *, limit: int) -> dict[str, list[Point]]:
        """As `trusted`, for every place (`at`) of the metric at once."""
        ...

    def recent(self, series: Series, *, limit: int) -> list[Point]:
        """The newest `limit` values, trusted or not, oldest first."""
        ...

    def places(self, test: str, backend: str, suite: str, metric: str) -> list[str]:
        """The `at`s that the newest trusted run of the metric has."""
        ...

    def series(self, test: str | None = None) -> list[Series]:
        """Every series of a test, or of all tests, sorted."""
        ...

    def write(self, run: Run, values: Sequence[Measured], outcomes: Sequence[TestOutcome]) -> None:
        """Store a run, whole or not at all; a run that is there already is refused."""
        ...

    def mark(self, selection: Selection, *, is_trusted: bool, reason: str) -> int:
        """Overrule the trust of all selected values; how many there are."""
        ...

    def flakes(self) -> list[Flakes]:
        """The tests that have ever passed, those with the most flakes first."""
        ...


def why_not_write(
    *, writes_history: bool, cadence: str, branch: str | None, default_branch: str
) -> str | None:
    """None where a run may write history, else why not.

    Args:
        writes_history: whether ci.toml lets event and cadence write (nightly and weekly do).
        branch: the branch that runs; None where it isn't known.
    """
    if not writes_history:
        return f"event and cadence ({cadence}) don't allow it in ci.toml"
    if branch is None:
        return "the branch isn't known; give --branch"
    if branch != default_branch:
        return f"only {default_branch} writes history, and this is {branch}"
    return None
