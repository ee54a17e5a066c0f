"""Makes the plan: policy, selection, shards, and a reason for each test that doesn't run.

Used by `parity ci plan` and `parity ci run`. Invariant, checked before the plan is given out:
every registration of the repository is planned exactly once or skipped with a reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parity.ci.config import Config, Suite
from parity.ci.model import (
    Event,
    Inventory,
    Plan,
    PlannedTest,
    Policy,
    Registration,
    Shard,
    SuitePlan,
    TestFile,
)
from parity.ci.partition.estimates import placeholder_warnings
from parity.ci.partition.shards import partition
from parity.ci.policy.changes import Affected, Changes, affected
from parity.ci.policy.resolve import resolve
from parity.ci.policy.select import Asked, Selection, select
from parity.errors import ConfigError
from parity.registry import known

TIMEOUT_FACTOR = 1.25  # an estimate may be wrong by this much before the test is killed


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan is asked for."""

    event: Event
    match_all: bool = False  # every label counts as asked for by name
    asked: Asked = field(default_factory=Asked)
    changes: Changes | None = None  # None: nobody asked for pruning
    shard_count: int | None = None  # instead of the suite's; only with one suite


def make_plan(
    request: Request,
    config: Config,
    inventory: Inventory,
    patches: Mapping[str, str] | None = None,
) -> Plan:
    """The plan. Raises ConfigError for whatever the request names and nobody knows."""
    _check_asked(request, config, inventory)
    policy = resolve(request.event, config, match_all=request.match_all)
    spared, warnings = _spared(request, policy, config, inventory)
    selection = select(inventory, policy, config, request.asked, spared)
    suites = tuple(
        _suite_plan(config.suites[name], selection, inventory, request)
        for name in config.suites
        if any(each.suite == name for each in selection.selected)
    )
    warnings += [*inventory.warnings, *placeholder_warnings(inventory.registrations)]
    warnings += _empty_shards(suites)
    plan = Plan(policy, suites, selection.skipped, tuple(warnings), dict(patches or {}))
    _check_complete(plan, inventory)
    return plan


def _check_asked(request: Request, config: Config, inventory: Inventory) -> None:
    asked = request.asked
    if asked.backend is not None and asked.backend not in config.backends:
        raise ConfigError(f"--backend {asked.backend}: {known(asked.backend, config.backends)}")
    if asked.suite is not None:
        if asked.suite not in config.suites:
            raise ConfigError(f"--suite {asked.suite}: {known(asked.suite, config.suites)}")
        backend = config.suites[asked.suite].backend
        if asked.backend not in (None, backend):
            raise ConfigError(
                f"--suite {asked.suite} is of {backend}, not of {asked.backend}; drop --backend."
            )
    if request.shard_count is not None and (request.shard_count < 1 or asked.suite is None):
        raise ConfigError(
            f"--shard-count {request.shard_count} needs to be >= 1 and to come with --suite."
        )
    paths = [file.path for file in inventory.files]
    for path in asked.files or ():
        if path not in paths:
            raise ConfigError(f"--file {path} is no registered test; {_some(path, paths)}")


def _some(path: str, paths: Sequence[str]) -> str:
    """As `known`, without printing ten thousand names."""
    name = path.rpartition("/")[2]
    near = [each for each in paths if each.rpartition("/")[2] == name]
    return known(path, near or paths) if len(near or paths) <= 20 else "`parity ci list` shows all."


def _spared(
    request: Request, policy: Policy, config: Config, inventory: Inventory
) -> tuple[Affected | None, list[str]]:
    """The suites that changes affect, where the policy prunes, and what to warn of."""
    if not policy.prunes or request.changes is None or request.asked.files is not None:
        return None, []
    found = affected(request.changes, inventory, config)
    if request.changes.why_unknown is not None:
        return found, [f"nothing is pruned: {request.changes.why_unknown}."]
    return found, []


def _suite_plan(
    suite: Suite, selection: Selection, inventory: Inventory, request: Request
) -> SuitePlan:
    own = {each.path: each for each in selection.selected if each.suite == suite.name}
    files = {file.path: file for file in inventory.files}
    weights = {path: each.est_time_s for path, each in own.items()}
    count = request.shard_count or suite.shards
    if request.asked.files is not None and request.shard_count is None:
        count = min(count, len(own))  # a rerun needs no machine that has nothing to do
    lists = partition(weights, count)
    shards = tuple(
        Shard(index, tuple(planned(own[path], files[path], suite) for path in paths))
        for index, paths in enumerate(lists)
    )
    return SuitePlan(suite.name, suite.backend, shards)


def planned(registration: Registration, file: TestFile, suite: Suite) -> PlannedTest:
    """A registration with its timeout, gates and fitted cases."""
    return PlannedTest(
        registration=registration,
        timeout_s=max(suite.timeout_s, TIMEOUT_FACTOR * registration.est_time_s),
        gates=tuple(gate for gate in file.gates if gate.applies_to(registration.backend)),
        cases=tuple(case.fit(suite.devices) if suite.devices else case for case in file.cases),
    )


def _empty_shards(suites: Sequence[SuitePlan]) -> list[str]:
    warnings: list[str] = []
    for suite in suites:
        empty = sum(not shard.tests for shard in suite.shards)
        if empty:
            warnings.append(
                f"{suite.suite} has {len(suite.tests)} tests for {len(suite.shards)} shards;"
                f" {empty} of them have nothing to run."
            )
    return warnings


def _check_complete(plan: Plan, inventory: Inventory) -> None:
    """A plan that loses or doubles a test is a bug of ours; it must not look like a plan."""
    told = Counter(test.registration.test_id for test in plan.tests)
    told.update(skipped.registration.test_id for skipped in plan.skipped)
    expected = Counter(each.test_id for each in inventory.registrations)
    assert told == expected, (
        f"the plan loses or doubles {set((told - expected) | (expected - told))}"
    )
