"""Runs the tests of one shard, one after the other, and accounts for every one of them.

who          does
shard        starts a file when the devices are back at their baseline and time is left
attempt      runs it, retries, judges its gates
report       is written by the caller in every case, also when we are told to stop

Invariant: every planned test is in the result exactly once, run or not, with a reason.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parity.ci.model import PlannedTest
from parity.ci.run.attempt import Lane, deadline_s, run_file
from parity.ci.run.readiness import Baseline
from parity.ci.run.result import GOOD, FileResult, Outcome
from parity.ci.run.work import UNLIMITED_S

LEAST_S = 1.0  # less than this isn't worth a start


@dataclass(frozen=True, slots=True)
class Rules:
    """When a shard ends early."""

    continue_on_error: bool
    timeout_s: float = UNLIMITED_S  # of the whole shard


def run_tests(
    tests: Sequence[PlannedTest], lane: Lane, rules: Rules, *, baseline: Baseline | None
) -> tuple[list[FileResult], str | None]:
    """The result of every test, in order, and why the shard ended early, if it did."""
    deadline = time.monotonic() + rules.timeout_s
    results: list[FileResult] = []
    stop: str | None = None
    trouble: str | None = None
    for test in tests:
        if stop is None and deadline - time.monotonic() < LEAST_S:
            stop = trouble = f"the shard's {rules.timeout_s:.4g} s are over"
        if stop is not None:
            results.append(_not_run(test, lane, Outcome.NOT_RUN, stop))
            continue
        try:
            result = run_file(test, lane, remaining=_until(deadline))
            excess = baseline.wait(timeout_s=lane.settings.memory_settle_s) if baseline else None
        except KeyboardInterrupt:
            results.append(_not_run(test, lane, Outcome.CANCELLED, "we were told to stop"))
            stop = trouble = "we were told to stop"
            continue
        except OSError as error:
            reason = f"its results can't be written ({error})"
            result, excess = _not_run(test, lane, Outcome.INFRASTRUCTURE, reason), None
        results.append(result)
        trouble = _trouble(result, excess)
        stop = trouble or _failed(result, rules)
    return results, trouble


def _trouble(result: FileResult, excess: str | None) -> str | None:
    """What makes the machine unfit for the next test."""
    survivors = result.attempts[-1].survivors if result.attempts else ()
    if survivors:
        return f"{', '.join(survivors)} can't be killed after {result.path}"
    return f"{excess} {result.path}" if excess else None


def _failed(result: FileResult, rules: Rules) -> str | None:
    if rules.continue_on_error or result.outcome in GOOD:
        return None
    return f"{result.path} ended before it ({result.outcome}), and --continue-on-error isn't given"


def _not_run(test: PlannedTest, lane: Lane, outcome: Outcome, reason: str) -> FileResult:
    return FileResult(
        path=test.path,
        est_time_s=test.registration.est_time_s,
        timeout_s=deadline_s(test, lane),
        outcome=outcome,
        reason=reason,
    )


def _until(deadline: float) -> Callable[[], float]:
    return lambda: deadline - time.monotonic()
