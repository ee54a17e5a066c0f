"""What `ci.toml` says: the one data file from which plan, runs, workflows and docs come.

The dataclasses here are its sections, field by field; `loading.load_config` reads and
cross-checks them.
Sections that another package of `ci/` owns (OWNED) stay unread `Table`s for their owners, who
read them strictly with `ci/toml.py`. Invariant: a loaded configuration has no dangling name; every
suite, label, scope, cadence and backend that is mentioned exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.ci.toml import Table

FILE = "ci.toml"
OWNED = ("run", "workflow", "gates", "history", "patches", "images", "dependencies")
ALL = "*"


@dataclass(frozen=True)
class Project:
    """[project]: where the tests lie and the rules for all of them."""

    roots: tuple[str, ...]  # folders that are searched for test files
    patterns: tuple[str, ...] = ("test_*.py",)  # names of test files
    exclude: tuple[str, ...] = ()  # globs of paths below the roots that hold no tests of CI
    cpu_only: tuple[str, ...] = ()  # folders where a registration on an accelerator is an error
    issues: str = r"https://\S+/issues/\d+"  # regular expression of an issue link
    max_disabled_days: int | None = None  # how far ahead a test may be disabled
    default_branch: str = "main"


@dataclass(frozen=True, slots=True)
class Implicit:
    """[[implicit]]: test files below a folder that needn't register themselves."""

    folder: str
    suite: str
    est_time_s: float
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Backend:
    """[backends.NAME]: a kind of hardware. `register_NAME_ci` registers on it."""

    name: str
    description: str
    is_accelerator: bool
    needs_labels: bool  # whether a registration must have a label
    command: tuple[str, ...]  # how one test file runs; {python} and {file} are replaced
    env: Mapping[str, str]  # variables of every test of the backend
    platform: str  # Parity's platform of that name: telemetry and visibility variables
    variant: str | None  # prefix of hardware variants: "amd" for test_amd_<name>.py
    forbidden_branches: tuple[str, ...]  # what an `if` of a test may not ask: "torch.version.hip"


@dataclass(frozen=True, slots=True)
class Suite:
    """[suites.NAME]: one kind of machine and how its tests are spread."""

    name: str
    description: str
    backend: str
    devices: int  # devices a test may use; 0 on a backend without accelerators
    runner: tuple[str, ...]  # labels of the machine, all of which must match (runs-on)
    is_self_hosted: bool  # our own machine: a job there needs a maintainer's approval
    image: str | None  # container image without or with a tag; None: no container
    shards: int
    max_parallel: int | None  # shards at the same time; None: all
    timeout_s: float  # of one test file, at least
    job_timeout_minutes: int  # of one shard as a whole
    cadences: tuple[str, ...]  # in which the suite takes part
    needs: tuple[str, ...]  # suites that must have passed before
    min_free_memory_gib: float | None  # per device, for the readiness probe; None: not checked
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WorkflowLabel:
    """[workflow_labels.NAME]: a pull-request label that steers the run and names no test."""

    name: str  # as on the pull request, such as run-ci-all
    meaning: str
    scope: str | None
    cadence: str | None
    fail_fast: bool | None
    is_one_shot: bool  # taken off the pull request by the job that hears it


@dataclass(frozen=True, slots=True)
class Cadence:
    """[cadences.NAME]: how often, and what it covers."""

    name: str
    cron: tuple[str, ...]  # UTC
    scope: str | None  # None: the event's
    admits_nightly: bool
    fail_fast: bool
    writes_history: bool  # its runs on the default branch write metric history


@dataclass(frozen=True, slots=True)
class Scope:
    """[scopes.NAME]: which labels are tested. `labels` minus `minus`; `veto` overrules both."""

    name: str
    rank: int  # of several scopes that are asked for, the one with the highest rank counts
    labels: tuple[str, ...]  # "*": all of [labels]
    minus: tuple[str, ...]  # labels taken out; a test may still come in through another label
    veto: tuple[str, ...]  # tests with such a label stay out, unless asked for explicitly
    is_broad: bool  # changed paths don't prune it

    def include(self, known_labels: Mapping[str, str]) -> frozenset[str]:
        """The labels in scope."""
        chosen = known_labels if ALL in self.labels else self.labels
        return frozenset(chosen) - frozenset(self.minus)


@dataclass(frozen=True, slots=True)
class EventRule:
    """[events.NAME]: what an event of the CI service starts."""

    name: str
    cadence: str | None  # None: from the cron line, or said explicitly
    scope: str
    prunes: bool  # whether changed paths may take suites out
    writes_history: bool  # whether such a run may write metric history, where its cadence does


@dataclass(frozen=True, slots=True)
class PathRule:
    """[[paths]]: which suites a changed path affects; the first rule that matches counts."""

    globs: tuple[str, ...]
    suites: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Config:
    """The whole of ci.toml."""

    path: Path
    project: Project
    implicit: tuple[Implicit, ...]
    backends: Mapping[str, Backend]
    suites: Mapping[str, Suite]
    labels: Mapping[str, str]  # key -> meaning; on a pull request the label is LABEL_PREFIX + key
    label_prefix: str
    workflow_labels: Mapping[str, WorkflowLabel]
    cadences: Mapping[str, Cadence]
    scopes: Mapping[str, Scope]
    events: Mapping[str, EventRule]
    paths: tuple[PathRule, ...]
    sections: Mapping[str, Table]  # those of OWNED that are there, unread

    @property
    def root(self) -> Path:
        """The repository's root."""
        return self.path.parent

    def section(self, name: str) -> Table:
        """An owned section; an empty one where the file has none."""
        assert name in OWNED, f"{name} isn't in OWNED"
        return self.sections[name]
