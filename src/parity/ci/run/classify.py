"""From how a test ended to what that means, by fixed rules; a pure function.

Used by `attempt.py`. A retry is allowed only by a named infrastructure cause: the typed exit
code, or a pattern of ci.toml in the end of the output. A failed assertion forbids it, whatever
else is in the output, for a number that is wrong one time in three is wrong. Not every non-zero
code is a failure of the test, and not every zero a pass: a file in which no test ran fails.
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from parity.ci.run.execute import Ending
from parity.ci.run.result import Counts, Outcome

INFRASTRUCTURE_EXIT = 75  # EX_TEMPFAIL of sysexits.h: "try again later"
EXIT_CAUSE = f"exit code {INFRASTRUCTURE_EXIT}"
PYTEST_NO_TESTS = 5
_SIGNAL_EXIT = 128  # a shell's code for a child that a signal ended
_PATTERN_LINES = 200  # a cause is near the end; far above it was handled and logged
_ASSERTION = re.compile(
    r"^\s*(E\s+)?(\w+\.)*AssertionError\b"
    r"|^E\s+assert\b|^\S+:\d+: AssertionError|^FAILED .*\bassert\b",
    re.MULTILINE,
)
_EXCEPTION = re.compile(
    r"^(?:E\s+)?((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt|Failed)\b.*)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """An outcome, one sentence why, and the infrastructure cause where there is one."""

    outcome: Outcome
    reason: str
    cause: str | None = None


def classify(
    ending: Ending,
    tail: str,
    *,
    timeout_s: float,
    patterns: Mapping[str, re.Pattern[str]],
    counts: Counts | None,
) -> Meaning:
    """What the end of one attempt means.

    Args:
        tail: the end of its output.
        counts: the tests inside the file; None where its runner doesn't tell.
    """
    if ending.is_timeout:
        return Meaning(Outcome.TIMEOUT, f"still ran after {timeout_s:.4g} s and was killed")
    if ending.exit_code == 0:
        return _ended_well(counts)
    how = _how(ending)
    if _ASSERTION.search(tail):
        return Meaning(Outcome.FAIL, _last_error(tail) or how)
    cause = _cause(ending, tail, patterns)
    if cause is not None:
        return Meaning(Outcome.INFRASTRUCTURE, f"{cause}; {_last_error(tail) or how}", cause)
    if signal_of(ending) is not None:
        return Meaning(Outcome.CRASHED, how)
    if ending.exit_code == PYTEST_NO_TESTS and counts is not None and counts.total == 0:
        how = "no test ran: the file holds none, or none was collected"
    return Meaning(Outcome.FAIL, _last_error(tail) or how)


def signal_of(ending: Ending) -> str | None:
    """The signal that ended it, also where a shell passed it on as 128 + number."""
    number = ending.signal
    if number is None and ending.exit_code is not None and ending.exit_code > _SIGNAL_EXIT:
        number = ending.exit_code - _SIGNAL_EXIT
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if ending.signal is not None else None


def _ended_well(counts: Counts | None) -> Meaning:
    if counts is None or counts.num_passed:
        return Meaning(Outcome.PASS, "")
    if counts.num_skipped:
        return Meaning(Outcome.SKIPPED, f"all {counts.num_skipped} tests in it skipped themselves")
    return Meaning(Outcome.FAIL, "no test ran although it ended with 0")


def _cause(ending: Ending, tail: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    if ending.exit_code == INFRASTRUCTURE_EXIT:
        return EXIT_CAUSE
    end = "\n".join(tail.splitlines()[-_PATTERN_LINES:])
    return next((name for name, pattern in patterns.items() if pattern.search(end)), None)


def _how(ending: Ending) -> str:
    name = signal_of(ending)
    if ending.signal is not None:
        hint = ", perhaps by the kernel for want of memory" if name == "SIGKILL" else ""
        return f"ended by {name}{hint}"
    return f"ended with code {ending.exit_code}" + (f", which stands for {name}" if name else "")


def _last_error(tail: str) -> str | None:
    found = _EXCEPTION.findall(tail)
    return found[-1].strip()[:300] if found else None
