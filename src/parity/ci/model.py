"""The values of hardware CI: what a test file says of itself, and what a plan says of it.

Produced by `registry/`, `policy/` and `plan/`; read by everything else in `ci/`. All are frozen
and hold plain values only, so that a plan can be printed, compared and sent as JSON. Paths are
relative to the repository's root, with `/`. Times are in seconds (`_s`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Literal

from parity.ci.cases import Case

Steps = Literal["last", "all", "mean"] | tuple[int, ...]
GateMode = Literal["shadow", "enforced"]


@dataclass(frozen=True, slots=True)
class Disabled:
    """Why a test is off for a while, who owns that, and until when (the last day included)."""

    reason: str
    issue: str  # link of the issue that is about it
    owner: str  # who brings the test back
    expires: date  # afterwards the plan itself fails


@dataclass(frozen=True, slots=True)
class Registration:
    """One backend on which one test file runs."""

    path: str
    line: int
    backend: str  # a key of [backends] in ci.toml
    suite: str  # a key of [suites], of this backend
    est_time_s: float  # on that suite's hardware; only balances shards and raises the timeout
    labels: tuple[str, ...] = ()  # keys of [labels]; none: selected whenever its suite runs
    nightly: bool = False  # only in cadences that admit nightly tests
    disabled: Disabled | None = None
    is_implicit: bool = False  # by [[implicit]] of ci.toml, not by a call

    @property
    def where(self) -> str:
        """`path:line`, as errors and reports name it."""
        return f"{self.path}:{self.line}"

    @property
    def test_id(self) -> str:
        """What names this registration in the whole repository."""
        return f"{self.backend}/{self.suite}:{self.path}"


@dataclass(frozen=True, slots=True)
class GateRegistration:
    """A metric of a test file that is compared with its trusted history.

    The band around the reference `ref` is `[ref - max(rel_down*|ref|, abs_down),
    ref + max(rel_up*|ref|, abs_up)]`; a side where both numbers are None takes the defaults of
    the metric in `[gates]` of ci.toml. `hard_min` and `hard_max` bound the value whatever the
    history says; None means no such bound.
    """

    path: str
    line: int
    metric_key: str
    steps: Steps = "last"  # which recorded steps: the last, all, their mean, or these numbers
    rel_up: float | None = None
    abs_up: float | None = None
    rel_down: float | None = None
    abs_down: float | None = None
    hard_min: float | None = None
    hard_max: float | None = None
    mode: GateMode = "shadow"  # shadow: reported only; enforced: a failure fails the test
    backends: tuple[str, ...] | None = None  # None: every backend the file is registered on

    def applies_to(self, backend: str) -> bool:
        """Whether the gate is judged on a backend."""
        return self.backends is None or backend in self.backends


@dataclass(frozen=True, slots=True)
class TestFile:
    """Everything that one test file says of itself."""

    path: str
    digest: str  # SHA-256 of the text
    registrations: tuple[Registration, ...]
    gates: tuple[GateRegistration, ...] = ()
    case_table: str | None = None  # path of the shared case table
    cases: tuple[Case, ...] = ()  # as the table states them, before they shrink

    __test__ = False  # not a class of pytest's


@dataclass(frozen=True, slots=True)
class Inventory:
    """Every test file of a repository, sorted by path; made by `registry.collect`."""

    files: tuple[TestFile, ...]
    warnings: tuple[str, ...] = ()

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """Every registration of every file."""
        return tuple(each for file in self.files for each in file.registrations)

    def file(self, path: str) -> TestFile | None:
        """The test file of that path, if there is one."""
        return next((file for file in self.files if file.path == path), None)


@dataclass(frozen=True, slots=True)
class Event:
    """What started CI, as the service tells it; untrusted text until the policy has read it."""

    name: str  # a key of [events]: pull_request, push, schedule, workflow_dispatch, ...
    schedule: str | None = None  # the cron line that fired
    labels: tuple[str, ...] = ()  # every label of the pull request, ours or not
    cadence: str | None = None  # said explicitly (a caller's input); wins over everything


@dataclass(frozen=True, slots=True)
class Policy:
    """What an event means: the cadence, and the labels whose tests are in scope."""

    event: str
    cadence: str
    scope: str  # a key of [scopes]
    include_labels: frozenset[str]  # scope and explicit labels together
    explicit_labels: frozenset[str]  # asked for by name: never subtracted, vetoed or pruned
    veto_labels: frozenset[str]  # a test with one of these needs an explicit label
    admits_nightly: bool
    fail_fast: bool  # stop a shard, and later stages, at the first failure
    writes_history: bool  # cadence and event may write metric history (default branch only)
    prunes: bool  # whether changed paths may take suites out
    consumed: tuple[str, ...] = ()  # workflow-only labels that were heard
    one_shot: tuple[str, ...] = ()  # those of them to be removed from the pull request
    ignored: tuple[str, ...] = ()  # labels that aren't about CI


class Why(StrEnum):
    """The kinds of reason for which a test doesn't run."""

    DISABLED = "disabled"
    CADENCE = "cadence"  # its suite has no part in this cadence
    NIGHTLY = "nightly"  # a nightly test, and the cadence admits none
    LABELS = "labels"  # none of its labels is in scope
    VETOED = "vetoed"  # one of its labels is vetoed by the scope
    PRUNED = "pruned"  # no changed path affects its suite
    NOT_ASKED = "not asked"  # another backend, suite or file was asked for


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a test doesn't run: the kind for programs, a sentence for people."""

    kind: Why
    text: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A registration that doesn't run, and why."""

    registration: Registration
    reason: Reason


@dataclass(frozen=True, slots=True)
class PlannedTest:
    """A registration that runs, with all that its runner needs."""

    registration: Registration
    timeout_s: float  # max(the suite's, 1.25 * the estimate)
    gates: tuple[GateRegistration, ...] = ()  # those of this backend
    cases: tuple[Case, ...] = ()  # fitted to the suite's devices

    @property
    def path(self) -> str:
        """The test file."""
        return self.registration.path


@dataclass(frozen=True, slots=True)
class Shard:
    """The tests of one job, in the order in which they run: longest first."""

    index: int  # from 0
    tests: tuple[PlannedTest, ...]

    @property
    def est_time_s(self) -> float:
        """The sum of the estimates."""
        return sum(test.registration.est_time_s for test in self.tests)


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """One suite: its shards, together exactly the tests of the suite that run."""

    suite: str
    backend: str
    shards: tuple[Shard, ...]  # may hold empty ones where there are fewer tests than shards

    @property
    def tests(self) -> tuple[PlannedTest, ...]:
        """The tests of all shards."""
        return tuple(test for shard in self.shards for test in shard.tests)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every registration of the repository, either planned once or skipped with a reason."""

    policy: Policy
    suites: tuple[SuitePlan, ...]  # those that run at least one test, in the order of ci.toml
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...] = ()
    patches: Mapping[str, str] | None = None  # active compatibility patches: name -> why

    @property
    def tests(self) -> tuple[PlannedTest, ...]:
        """Every test that runs."""
        return tuple(test for suite in self.suites for test in suite.tests)

    def suite(self, name: str) -> SuitePlan | None:
        """The plan of one suite; None where none of its tests runs."""
        return next((suite for suite in self.suites if suite.suite == name), None)
