"""The contract of a reward: judges one answer, in a grader process, without torch.

`score` is called from one thread of a process of its own, which is killed when it passes
its deadline; it may therefore block, leak or crash without harm to the run. It returns
`Scored` (a finite number), `Unscored` (can't be graded: not a wrong answer) or
`GraderFailure` (broke; maybe worth another try). An exception counts as GraderFailure.

A class takes its config section and nothing else. `checked` holds every result to the
contract before it leaves the grader process.

Third parties register theirs under the entry point `parity.rewards` (docs/adding.md). Such a
class has an attribute `Config` of the form that `tasks/source.py` tells, and is built as
`Reward(config)` in every grader process, where the section arrives as plain data. In a part of
`reward.name=sum` the keys `weight` and `label` belong to the sum.
"""

import math
import numbers
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping

from parity.errors import RewardError
from parity.types import MAX_REWARD, Answer, GraderFailure, RewardResult, Scored, Unscored

NO_ANSWER = Unscored("task has no answer")


class Reward(ABC):
    """Judges answers; built once per grader process from its config section."""

    @abstractmethod
    def score(self, answer: Answer) -> RewardResult:
        """What the answer is worth."""


def checked(result: object) -> RewardResult:
    """`result` with plain finite floats, or the GraderFailure that says how it breaks the contract.

    Such a failure isn't retryable: the reward itself has to be corrected.
    """
    try:
        match result:
            case Scored():
                return scored(result.value, result.parts)
            case Unscored():
                return Unscored(_reason("an Unscored", result.reason))
            case GraderFailure():
                reason = _reason("a GraderFailure", result.reason)
                return GraderFailure(reason, retryable=bool(result.retryable))
            case _:
                raise RewardError(
                    f"a reward returned {described(result)}; it must return Scored, Unscored or"
                    " GraderFailure."
                )
    except RewardError as error:
        return GraderFailure(str(error), retryable=False)


def scored(value: object, parts: object) -> Scored:
    """A Scored of any kind of real numbers; raises RewardError where one isn't finite."""
    if not isinstance(parts, Mapping):
        raise RewardError(
            f"the parts of a reward are {described(parts)}; they must be a mapping from name to"
            " number."
        )
    plain: dict[str, float] = {}
    for name, part in parts.items():
        if not isinstance(name, str):
            raise RewardError(f"a reward has a part named {described(name)}; it must be text.")
        plain[name] = _finite(part, f"part {name!r} of a reward")
    return Scored(value=_finite(value, "a reward"), parts=plain)


def described(value: object) -> str:
    """A value for an error message: its type, and a bounded piece of what it looks like."""
    piece = value[:60] if isinstance(value, str) else value
    shown = ascii(piece) if isinstance(piece, str | float | int) else ""
    return f"{type(value).__qualname__} {shown[:60]}".rstrip()


def _reason(whose: str, reason: object) -> str:
    if not isinstance(reason, str):
        raise RewardError(f"the reason of {whose} is {described(reason)}; it must be text.")
    return reason


def _finite(value: object, what: str) -> float:
    numpy = sys.modules.get("numpy")  # a numpy value can only exist once numpy was imported
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(value, numbers.Real):
        raise RewardError(f"{what} is {described(value)}; it must be a finite number.")
    try:
        number = float(value)
    except OverflowError as error:
        raise RewardError(f"{what} is a number too large for a float.") from error
    if not math.isfinite(number):
        raise RewardError(f"{what} is {number} ({type(value).__qualname__}); it must be finite.")
    if abs(number) > MAX_REWARD:
        raise RewardError(f"{what} is {number}; its size must be at most {MAX_REWARD:.0e}.")
    return number
