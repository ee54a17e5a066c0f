"""`reward.name=numeric`: 1.0 where the last number of the response equals the answer, else 0.0.

A number is decimal digits with an optional sign, thousands commas, fraction and exponent:
`-1,234.5e-3`. A minus right after a digit, a letter or a closing bracket is an operator
(`10-5` ends with 5). Fractions such as `1/2` are for `reward.name=math`. Two numbers are equal
where |a - b| <= max(relative_tolerance * max(|a|, |b|), absolute_tolerance), in decimals of 40
digits, so that tolerances of 0 compare long whole numbers exactly.
"""

import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation, localcontext

from parity.rewards.config import NumericRewardConfig
from parity.rewards.reward import NO_ANSWER, Reward, described
from parity.types import Answer, RewardResult, Scored, Unscored

_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-+])?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]+)?",
    re.ASCII,
)
_DECIMALS = Context(prec=40, Emin=MIN_EMIN, Emax=MAX_EMAX)
_MINUS_SIGN = "\u2212"  # the typographic minus


class NumericReward(Reward):
    """Compares numbers."""

    def __init__(self, config: NumericRewardConfig) -> None:
        self._relative = Decimal(repr(config.relative_tolerance))
        self._absolute = Decimal(repr(config.absolute_tolerance))

    def score(self, answer: Answer) -> RewardResult:
        """1.0 or 0.0."""
        if answer.expected is None:
            return NO_ANSWER
        whole = _NUMBER.fullmatch(answer.expected.strip().replace(_MINUS_SIGN, "-"))
        expected = None if whole is None else _decimal(whole.group())
        if expected is None:
            return Unscored(f"the expected answer is {described(answer.expected)}, not a number")
        found = None
        for match in _NUMBER.finditer(answer.response.replace(_MINUS_SIGN, "-")):
            found = match.group()
        number = None if found is None else _decimal(found)
        return Scored(1.0 if number is not None and self._is_equal(number, expected) else 0.0)

    def _is_equal(self, number: Decimal, expected: Decimal) -> bool:
        with localcontext(_DECIMALS):
            largest = max(abs(number), abs(expected))
            return abs(number - expected) <= max(self._relative * largest, self._absolute)


def _decimal(text: str) -> Decimal | None:
    """The number that `text` writes, exactly; None where its exponent is out of all range."""
    try:
        number = Decimal(text.replace(",", ""))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
