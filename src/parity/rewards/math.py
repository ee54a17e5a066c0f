"""`reward.name=math`: 1.0 where `math-verify` finds response and answer equal, else 0.0.

The expected answer may be written with or without LaTeX delimiters. A response in which no
mathematics can be read is wrong (0.0); an expected answer that can't be read leaves the
task unscored; a comparison that breaks is an error and never 0.0.

math-verify bounds itself by signals, which work in a main thread only and elsewhere turn
every score into 0; its limits are therefore off and the deadline of the grader process
bounds all of it.
"""

import itertools
import logging

from math_verify import parse, verify
from sympy import nan, zoo

from parity.rewards.config import MathRewardConfig
from parity.rewards.reward import NO_ANSWER, Reward, described
from parity.types import Answer, RewardResult, Scored, Unscored

_DELIMITERS = ("$", "\\boxed", "\\(", "\\[", "\\begin")

# It warns once that its own limits are off, which is what is wanted here.
logging.getLogger("math_verify").setLevel(logging.ERROR)


class MathReward(Reward):
    """Compares mathematical expressions."""

    def __init__(self, config: MathRewardConfig) -> None:
        """There is nothing to choose yet."""

    def score(self, answer: Answer) -> RewardResult:
        """1.0 or 0.0."""
        if answer.expected is None:
            return NO_ANSWER
        expected = _expected(answer.expected)
        if not expected:
            return Unscored(
                f"the expected answer is {described(answer.expected)}, in which math-verify reads"
                " no value"
            )
        found = _read(answer.response)
        # Sources (text) come last in a reading and first here: comparing them can't break.
        is_equal = any(
            verify(a, b, timeout_seconds=None, raise_on_error=True)
            for a, b in itertools.product(reversed(expected), reversed(found))
        )
        return Scored(1.0 if is_equal else 0.0)


def _expected(text: str) -> list:  # pyright: ignore[reportMissingTypeArgument]
    """The readings of an expected answer; empty where there is none or it has no value (1/0)."""
    is_delimited = any(delimiter in text for delimiter in _DELIMITERS)
    readings = _read(text) if is_delimited else _read(f"${text}$") or _read(text)
    return [] if any(reading is nan or reading is zoo for reading in readings) else readings


def _read(text: str) -> list:  # pyright: ignore[reportMissingTypeArgument]
    """What math-verify reads in a text: a sympy object and its source; empty where nothing."""
    try:
        return parse(text, parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]
    except (ValueError, TypeError, ArithmeticError):  # such as a number of 5,000 digits
        return []
