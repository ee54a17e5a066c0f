"""What a shard adds to the history, and whether it may."""

import math

from parity.ci.gates.history import History, Measured, Run, Series, TestOutcome, why_not_write
from parity.ci.gates.judge import Verdict
from parity.ci.run.result import Outcome, ShardResult
from parity.ci.run.work import Options, Work

_TRUSTED = (Verdict.PASS, Verdict.NEW)


def unstored(work: Work, options: Options, default_branch: str, shard: ShardResult) -> str | None:
    """Why the values of a shard aren't kept, or None."""
    why = why_not_write(
        writes_history=work.writes_history,
        cadence=work.cadence,
        branch=options.branch,
        default_branch=default_branch,
    )
    if why is not None:
        return why
    if options.history_url is None:
        return "no store was given; give --history"
    if options.run_id is None or options.commit is None:
        return "run and commit aren't known; give --run-id and --commit"
    return None if shard.ran else "nothing ran"


def store(history: History, run: Run, shard: ShardResult) -> int:
    """Write values and outcomes of a shard; how many values there are.

    A value that its gate refused is kept for explanations, untrusted. What a failed test has
    recorded isn't kept at all.
    """
    values: list[Measured] = []
    outcomes: list[TestOutcome] = []
    for file in shard.ran:
        outcomes.append(TestOutcome(file.path, file.outcome.value, len(file.attempts), file.time_s))
        if file.outcome not in (Outcome.PASS, Outcome.GATE):
            continue
        for judged in file.judgements:
            if judged.value is None or not math.isfinite(judged.value):
                continue
            series = Series(file.path, shard.backend, shard.suite, judged.metric_key, judged.at)
            is_trusted = judged.verdict in _TRUSTED
            values.append(Measured(series, judged.value, judged.verdict.value, is_trusted))
    history.write(run, values, outcomes)
    return len(values)
