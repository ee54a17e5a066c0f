"""What became of the tests of a shard. Written as JSON, JUnit XML and Markdown by `report/`.

Invariant: a test is counted once, by the outcome of its last attempt, and every attempt is kept:
a pass after a retry is told apart from a clean one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from parity.ci.gates.judge import Judgement
from parity.ci.model import Skipped


class Outcome(StrEnum):
    """What became of a test file."""

    PASS = "pass"
    FAIL = "fail"
    TIMEOUT = "timeout"
    CRASHED = "crashed by signal"
    INFRASTRUCTURE = "infrastructure"
    GATE = "gate failure"
    SKIPPED = "skipped"  # it ran and skipped every test in it, with reasons
    NOT_RUN = "not run"  # it was planned and never began; the reason says why
    CANCELLED = "cancelled"  # we were told to stop


GOOD = (Outcome.PASS, Outcome.SKIPPED)


@dataclass(frozen=True, slots=True)
class Counts:
    """The tests inside a file, where its runner tells them."""

    num_passed: int
    num_failed: int
    num_skipped: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.num_passed + self.num_failed + self.num_skipped


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a test file."""

    outcome: Outcome
    reason: str  # one sentence; empty for a plain pass
    cause: str | None  # the name of the infrastructure cause, which alone allows a retry
    time_s: float
    exit_code: int | None
    signal: str | None  # SIGSEGV, ...
    log_path: str
    tail: str  # the end of its output
    counts: Counts | None = None  # None: its runner doesn't tell
    leftovers: tuple[str, ...] = ()  # processes that outlived it and were killed
    survivors: tuple[str, ...] = ()  # processes that can't be killed


@dataclass(frozen=True, slots=True)
class FileResult:
    """One test file of the shard."""

    path: str
    est_time_s: float
    timeout_s: float
    outcome: Outcome
    reason: str
    attempts: tuple[Attempt, ...] = ()
    judgements: tuple[Judgement, ...] = ()

    @property
    def is_flaky(self) -> bool:
        """Whether it passed only after a retry."""
        return self.outcome is Outcome.PASS and len(self.attempts) > 1

    @property
    def time_s(self) -> float:
        """Of all attempts together."""
        return sum(attempt.time_s for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """One job: the tests that ran, those that didn't, and what was wrong with the machine."""

    backend: str
    suite: str
    shard: int  # from 0
    num_shards: int
    files: tuple[FileResult, ...]
    skipped: tuple[Skipped, ...]  # by the plan, each with its reason
    devices: tuple[int, ...] = ()  # the leased ones
    trouble: str | None = None  # why the shard ended early, if it did
    notes: tuple[str, ...] = ()
    allow_empty: str | None = None  # why it is right that nothing runs here

    @property
    def ran(self) -> Sequence[FileResult]:
        """The files in which a test ran to some end."""
        return [f for f in self.files if f.outcome not in (Outcome.SKIPPED, Outcome.NOT_RUN)]

    @property
    def flake_rate(self) -> float | None:
        """The share of passes that needed a retry; None where nothing passed."""
        passes = [f for f in self.files if f.outcome is Outcome.PASS]
        return sum(f.is_flaky for f in passes) / len(passes) if passes else None

    @property
    def empty_problem(self) -> str | None:
        """Why it is a failure that nothing ran; None where something ran or a reason is stated."""
        if self.ran or self.allow_empty is not None:
            return None
        if self.files:
            return "every test of the shard skipped itself or never began"
        if self.skipped:
            return None  # each of them carries its reason
        return f"no test is registered for the suite {self.suite!r}"

    @property
    def exit_code(self) -> int:
        """0 good; 1 a test failed; 3 nothing ran, without a reason; 75 only the machine failed.

        130 when we were told to stop, whatever came before.
        """
        outcomes = {f.outcome for f in self.files}
        infrastructure = {Outcome.INFRASTRUCTURE, Outcome.NOT_RUN}
        if Outcome.CANCELLED in outcomes:
            return 130
        if outcomes - {*GOOD, *infrastructure}:
            return 1
        if outcomes & infrastructure or self.trouble is not None:
            return 75
        return 3 if self.empty_problem else 0
