"""`reward.name=format`: 1.0 where the whole response matches a regular expression, else 0.0.

Needs no expected answer. A pattern that backtracks without end is stopped by the deadline
of the grader process.
"""

import re

from parity.rewards.config import FormatRewardConfig
from parity.rewards.reward import Reward
from parity.types import Answer, RewardResult, Scored


class FormatReward(Reward):
    """Judges the form alone."""

    def __init__(self, config: FormatRewardConfig) -> None:
        self._pattern = re.compile(config.pattern)

    def score(self, answer: Answer) -> RewardResult:
        """1.0 or 0.0."""
        return Scored(1.0 if self._pattern.fullmatch(answer.response) else 0.0)
