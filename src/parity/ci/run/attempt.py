"""One test file from its first attempt to its result: run, classify, retry, judge its metrics.

Used by `shard.py`. Only the record of the passing attempt is judged. A gate failure is never
retried, and an infrastructure failure is retried only as often as allowed; every attempt is kept.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parity.ci.gates.gate import GateSettings
from parity.ci.gates.history import HistoryError
from parity.ci.gates.judge import Judge, Judgement, Place, unreadable
from parity.ci.gates.record import read_record
from parity.ci.model import PlannedTest
from parity.ci.run.classify import Meaning, classify, signal_of
from parity.ci.run.counts import read_counts, with_report
from parity.ci.run.execute import Command, StartError, execute
from parity.ci.run.output import Fence, Output, Shows
from parity.ci.run.result import Attempt, FileResult, Outcome
from parity.ci.run.settings import RunSettings
from parity.ci.run.work import Wrap, unwrapped
from parity.ci.text import harmless
from parity.errors import DataError

METRICS_VARIABLE = "PARITY_CI_METRICS"
HISTORY_VARIABLE = "PARITY_CI_HISTORY"  # may hold a password: no test gets it
EST_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Lane:
    """What all tests of a shard share."""

    root: Path  # of the repository
    output_dir: Path  # logs, records and reports; absolute
    command: Sequence[str]  # {python} and {file} are replaced
    variables: Mapping[str, str]  # of every test: devices, backend and suite
    marker: str  # beginning of the marker of every process that a test starts
    settings: RunSettings
    gates: GateSettings
    judge: Judge
    live: Shows
    groups: bool = True  # fold each test in the log, as GitHub Actions does
    timeout_s: float | None = None  # instead of the suite's
    retries: int = 0
    wrap: Wrap = unwrapped  # puts a compatibility patch around the command
    pause: Callable[[float], None] = field(default=time.sleep)


def deadline_s(test: PlannedTest, lane: Lane) -> float:
    """How long one attempt may take: the plan's, or the given one, but 1.25 estimates at least."""
    if lane.timeout_s is None:
        return test.timeout_s
    return max(lane.timeout_s, EST_FACTOR * test.registration.est_time_s)


def run_file(test: PlannedTest, lane: Lane, *, remaining: Callable[[], float]) -> FileResult:
    """Run a test file until it has a result.

    Args:
        remaining: seconds that are left to the shard.
    """
    attempts: list[Attempt] = []
    while True:
        number = len(attempts) + 1
        attempt, record_path = _attempt(
            test, lane, number, min(deadline_s(test, lane), remaining())
        )
        attempts.append(attempt)
        can_retry = (
            attempt.outcome is Outcome.INFRASTRUCTURE
            and attempt.cause is not None
            and not attempt.survivors
            and number <= lane.retries
            and remaining() > lane.settings.retry_wait_s
        )
        if not can_retry:
            return _result(test, lane, attempts, record_path)
        lane.live.write(f"{harmless(f'{test.path}: {attempt.reason}; tried again')}\n")
        lane.pause(lane.settings.retry_wait_s)


def _attempt(test: PlannedTest, lane: Lane, number: int, timeout_s: float) -> tuple[Attempt, Path]:
    folder = lane.output_dir / "files" / test.path / f"attempt-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    record_path, report_path = folder / "metrics.jsonl", folder / "pytest.xml"
    for path in (record_path, report_path):
        path.unlink(missing_ok=True)  # of an earlier run into the same folder
    words = {"{python}": sys.executable, "{file}": test.path}
    argv = [_filled(word, words) for word in lane.command]
    argv = list(lane.wrap(with_report(argv, report_path), test))
    marker = f"{lane.marker}.{test.registration.test_id}.{number}"
    command = Command(
        argv=argv,
        working_dir=lane.root,
        variables={**lane.variables, METRICS_VARIABLE: str(record_path)},
        without=(HISTORY_VARIABLE,),
        marker=marker,
        timeout_s=timeout_s,
    )
    title = f"{harmless(test.path)} (attempt {number}, at most {timeout_s:.4g} s)"
    with Fence(lane.live, title, groups=lane.groups):
        attempt = _run(command, Output(folder / "output.log", lane.live), lane, report_path, test)
    _tell(attempt, test, lane)
    return attempt, record_path


def _run(
    command: Command, output: Output, lane: Lane, report_path: Path, test: PlannedTest
) -> Attempt:
    log_path = output.log_path.relative_to(lane.output_dir).as_posix()
    try:
        ending = execute(command, output)
    except StartError as error:
        return Attempt(Outcome.INFRASTRUCTURE, str(error), None, 0.0, None, None, log_path, "")
    finally:
        output.close()
    counts = read_counts(command.argv, report_path, lane.root / test.path)
    meaning = classify(
        ending,
        output.tail,
        timeout_s=command.timeout_s,
        patterns=lane.settings.infrastructure,
        counts=counts,
    )
    if ending.survivors:
        why = f"{', '.join(ending.survivors)} can't be killed; {meaning.reason or meaning.outcome}"
        meaning = Meaning(Outcome.INFRASTRUCTURE, why)
    return Attempt(
        outcome=meaning.outcome,
        reason=meaning.reason,
        cause=meaning.cause,
        time_s=ending.time_s,
        exit_code=ending.exit_code,
        signal=signal_of(ending),
        log_path=log_path,
        tail=output.tail,
        counts=counts,
        leftovers=ending.leftovers,
        survivors=ending.survivors,
    )


def _result(
    test: PlannedTest, lane: Lane, attempts: Sequence[Attempt], record_path: Path
) -> FileResult:
    last = attempts[-1]
    outcome, reason = last.outcome, last.reason
    judgements: list[Judgement] = []
    if outcome is Outcome.PASS:
        try:
            judgements = _judged(test, lane, record_path)
        except HistoryError as error:
            outcome, reason = Outcome.INFRASTRUCTURE, str(error)
        blocking = [judgement for judgement in judgements if judgement.blocks]
        if blocking:
            outcome = Outcome.GATE
            reason = "; ".join(f"{j.metric_key} ({j.at}): {j.reason}" for j in blocking)
    return FileResult(
        path=test.path,
        est_time_s=test.registration.est_time_s,
        timeout_s=deadline_s(test, lane),
        outcome=outcome,
        reason=reason,
        attempts=tuple(attempts),
        judgements=tuple(judgements),
    )


def _judged(test: PlannedTest, lane: Lane, record_path: Path) -> list[Judgement]:
    gates = [lane.gates.gate(registration) for registration in test.gates]
    if not gates:
        return []
    try:
        record = read_record(record_path)
    except DataError as error:
        return unreadable(gates, str(error))
    registration = test.registration
    return lane.judge.record(
        gates, record, Place(test.path, registration.backend, registration.suite)
    )


def _tell(attempt: Attempt, test: PlannedTest, lane: Lane) -> None:
    reason = f": {attempt.reason}" if attempt.reason else ""
    lines = [f"{test.path}: {attempt.outcome} in {attempt.time_s:.1f} s{reason}"]
    lines += [f"{test.path}: left behind and killed: {each}" for each in attempt.leftovers]
    lane.live.write("".join(f"{harmless(line)}\n" for line in lines))
    lane.live.flush()


def _filled(word: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(name, value)
    return word
