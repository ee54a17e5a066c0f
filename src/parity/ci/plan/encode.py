"""A plan as JSON, as text for people, and as outputs of a CI job.

Used by the command line. The JSON is the public form: keys are only added to it. Times are in
seconds and keys in a fixed order, so that equal plans are equal text.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from parity.ci.config import Config, Suite
from parity.ci.model import Plan, PlannedTest, Policy, Registration, Skipped, SuitePlan, TestFile

SCHEMA = 1
SHOWN = 20  # skipped tests of one kind in the text


def to_json(plan: Plan, config: Config) -> str:
    """The plan as one JSON document, with a newline at its end."""
    document = {
        "schema": SCHEMA,
        "policy": _policy(plan.policy),
        "num_planned": len(plan.tests),
        "num_skipped": len(plan.skipped),
        "suites": [_suite(suite, config.suites[suite.suite]) for suite in plan.suites],
        "skipped": [_skipped(skipped) for skipped in plan.skipped],
        "patches": dict(plan.patches or {}),
        "warnings": list(plan.warnings),
    }
    return json.dumps(document, allow_nan=False) + "\n"


def _policy(policy: Policy) -> dict[str, object]:
    return {
        key: sorted(value) if isinstance(value, frozenset) else value
        for key, value in asdict(policy).items()
    }


def _suite(plan: SuitePlan, suite: Suite) -> dict[str, object]:
    return {
        "suite": plan.suite,
        "backend": plan.backend,
        "devices": suite.devices,
        "runner": list(suite.runner),
        "image": suite.image,
        "needs": list(suite.needs),
        "job_timeout_minutes": suite.job_timeout_minutes,
        "shards": [
            {
                "shard": shard.index,
                "est_time_s": shard.est_time_s,
                "tests": [_test(test) for test in shard.tests],
            }
            for shard in plan.shards
        ],
    }


def _test(test: PlannedTest) -> dict[str, object]:
    own = test.registration
    return {
        "path": own.path,
        "line": own.line,
        "est_time_s": own.est_time_s,
        "timeout_s": test.timeout_s,
        "labels": list(own.labels),
        "nightly": own.nightly,
        "gates": [{"metric_key": gate.metric_key, "mode": gate.mode} for gate in test.gates],
        "cases": [
            {"name": case.name, "devices": case.devices, "tp": case.tp, "cp": case.cp}
            | {"pp": case.pp, "dp": case.dp, "ep": case.ep, "etp": case.etp}
            for case in test.cases
        ],
    }


def _skipped(skipped: Skipped) -> dict[str, object]:
    own = skipped.registration
    return {
        "path": own.path,
        "line": own.line,
        "backend": own.backend,
        "suite": own.suite,
        "reason": skipped.reason.kind.value,
        "text": skipped.reason.text,
    }


def job_outputs(plan: Plan, config: Config) -> dict[str, str]:
    """What later jobs ask: one line each, and no text of a pull request unchecked."""
    policy = plan.policy
    prefix = config.label_prefix
    about_ci = sorted({f"{prefix}{key}" for key in policy.explicit_labels} | {*policy.consumed})
    return {
        "event": policy.event,
        "cadence": policy.cadence,
        "labels": json.dumps(about_ci),
        "suites": json.dumps([suite.suite for suite in plan.suites]),
        "fail_fast": json.dumps(policy.fail_fast),
        "writes_history": json.dumps(policy.writes_history),
        "one_shot": json.dumps(list(policy.one_shot)),
    }


def as_text(plan: Plan, config: Config) -> str:
    """The plan for people: shards with their tests, then what doesn't run, by reason."""
    policy = plan.policy
    scope = ", ".join(sorted(policy.include_labels)) or "no label"
    lines = [
        f"event {policy.event}, cadence {policy.cadence}, scope {policy.scope} ({scope})",
        f"{len(plan.tests)} tests run, {len(plan.skipped)} don't",
    ]
    if policy.ignored:
        lines.append(f"labels that aren't about CI: {', '.join(policy.ignored)}")
    for suite in plan.suites:
        machine = " ".join(config.suites[suite.suite].runner)
        lines += ["", f"{suite.suite} ({suite.backend}, runs on {machine})"]
        for shard in suite.shards:
            lines.append(f"  shard {shard.index} of {len(suite.shards)}: {shard.est_time_s:g} s")
            lines += [
                f"    {test.registration.est_time_s:6g} s  {test.path}" for test in shard.tests
            ]
    lines += _skipped_lines(plan)
    lines += [f"patch {name}: {why}" for name, why in _by_name(plan.patches)]
    return "\n".join(lines) + "\n"


def _by_name(patches: Mapping[str, str] | None) -> list[tuple[str, str]]:
    return sorted((patches or {}).items())


def _skipped_lines(plan: Plan) -> list[str]:
    lines: list[str] = []
    counts = Counter(skipped.reason.kind for skipped in plan.skipped)
    for kind, count in sorted(counts.items()):
        lines += ["", f"not run, {kind.value}: {count}"]
        own = [skipped for skipped in plan.skipped if skipped.reason.kind == kind]
        for skipped in own[:SHOWN]:
            place = f"{skipped.registration.path} ({skipped.registration.suite})"
            lines.append(f"  {place}: {skipped.reason.text}")
        if count > SHOWN:
            lines.append(f"  ... and {count - SHOWN} more; --json shows all")
    return lines


@dataclass(frozen=True, slots=True)
class Row:
    """A registration as `parity ci list` shows it."""

    path: str
    line: int
    backend: str
    suite: str
    est_time_s: float
    labels: list[str]
    nightly: bool
    disabled: str | None
    gates: list[str]
    is_implicit: bool


def registration_row(registration: Registration, file: TestFile) -> Row:
    """One registration of a file for a list."""
    off = registration.disabled
    return Row(
        path=registration.path,
        line=registration.line,
        backend=registration.backend,
        suite=registration.suite,
        est_time_s=registration.est_time_s,
        labels=list(registration.labels),
        nightly=registration.nightly,
        disabled=None if off is None else f"until {off.expires}: {off.reason} ({off.issue})",
        gates=[gate.metric_key for gate in file.gates if gate.applies_to(registration.backend)],
        is_implicit=registration.is_implicit,
    )
