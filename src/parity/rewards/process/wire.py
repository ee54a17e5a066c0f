"""What driver and grader process say to each other: one JSON document a line, no pickle.

driver -> process   Setup, then one Answer a line
process -> driver   Ready or Refused, then one RewardResult a line, in the order of the answers

Lines are ASCII: every character that JSON can escape is escaped, so that lone surrogates,
NUL and any other text arrive as they were sent. Both ends are in this file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from parity.errors import ConfigError, ParityError, RewardError, UnsupportedError
from parity.types import Answer, GraderFailure, Json, RewardResult, Scored, Unscored

MAX_REASON_CHARACTERS = 2000
MAX_RESULT_BYTES = 1024**2

_REFUSALS: dict[str, type[ParityError]] = {
    error.__name__: error for error in (ConfigError, UnsupportedError, RewardError)
}


@dataclass(frozen=True, slots=True)
class Setup:
    """The first line: what the process is to be."""

    section: Mapping[str, Json]  # the reward section
    parent_pid: int  # the driver; the process ends with it
    import_paths: tuple[str, ...]  # entries of sys.path, the working directory first
    memory_mib: int | None
    max_children: int | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The reward can't be built; `kind` is the name of an error class."""

    kind: str
    message: str

    def as_error(self) -> ParityError:
        """The error to raise in the driver."""
        return _REFUSALS.get(self.kind, RewardError)(self.message)


def encode_setup(setup: Setup) -> bytes:
    """One line."""
    return _line(asdict(setup))


def decode_setup(line: bytes) -> Setup:
    """The Setup of a line."""
    fields = json.loads(line)
    return Setup(
        section=fields["section"],
        parent_pid=fields["parent_pid"],
        import_paths=tuple(fields["import_paths"]),
        memory_mib=fields["memory_mib"],
        max_children=fields["max_children"],
    )


def encode_ready(refused: Refused | None = None) -> bytes:
    """One line: the process can grade, or why it can't."""
    if refused is None:
        return _line({"ready": True})
    return _line({"kind": refused.kind, "message": bounded(refused.message)})


def decode_ready(line: bytes) -> Refused | None:
    """None where the process is ready."""
    fields = json.loads(line)
    return None if fields.get("ready") is True else Refused(fields["kind"], fields["message"])


def encode_answer(answer: Answer) -> bytes:
    """One line; raises TypeError, ValueError or RecursionError where a column isn't JSON."""
    return _line(
        {
            "task_id": answer.task_id,
            "question": answer.question,
            "response": answer.response,
            "expected": answer.expected,
            "columns": dict(answer.columns),
            "is_truncated": answer.is_truncated,
            "split": answer.split,
        }
    )


def decode_answer(line: bytes) -> Answer:
    """The Answer of a line."""
    return Answer(**json.loads(line))


def encode_result(result: RewardResult) -> bytes:
    """One line; values must be finite. Raises RewardError where the parts are too many."""
    match result:
        case Scored():
            line = _line({"value": result.value, "parts": dict(result.parts)}, allows_nan=False)
            if len(line) > MAX_RESULT_BYTES:
                raise RewardError(
                    f"a reward returned {len(result.parts)} parts that are {len(line)} bytes long;"
                    f" at most {MAX_RESULT_BYTES} are allowed. Return fewer parts."
                )
            return line
        case Unscored():
            return _line({"unscored": bounded(result.reason)})
        case GraderFailure():
            return _line({"failure": bounded(result.reason), "retryable": result.retryable})


def decode_result(line: bytes) -> RewardResult:
    """The RewardResult of a line."""
    fields = json.loads(line)
    if "value" in fields:
        return Scored(fields["value"], fields["parts"])
    if "unscored" in fields:
        return Unscored(fields["unscored"])
    return GraderFailure(fields["failure"], retryable=fields["retryable"])


def bounded(text: str, limit: int = MAX_REASON_CHARACTERS) -> str:
    """`text`, cut where it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _line(fields: Mapping[str, object], *, allows_nan: bool = True) -> bytes:
    """NaN in a task's columns is data and passes as Python's JSON writes and reads it."""
    text = json.dumps(fields, ensure_ascii=True, allow_nan=allows_nan, separators=(",", ":"))
    return text.encode("ascii") + b"\n"
