"""`reward.name=exact`: 1.0 where the response equals the expected answer, else 0.0.

With `pattern`, what is compared is group 1 of its last match in the response; a response
without a match is wrong (0.0), because the answer was asked for in that form. A task without
an answer is unscored.
"""

import re

from parity.rewards.config import ExactRewardConfig
from parity.rewards.reward import NO_ANSWER, Reward
from parity.types import Answer, RewardResult, Scored


class ExactReward(Reward):
    """Compares text with text."""

    def __init__(self, config: ExactRewardConfig) -> None:
        self._config = config
        self._pattern = None if config.pattern is None else re.compile(config.pattern)

    def score(self, answer: Answer) -> RewardResult:
        """1.0 or 0.0."""
        if answer.expected is None:
            return NO_ANSWER
        found = self._extract(answer.response)
        is_equal = found is not None and self._normal(found) == self._normal(answer.expected)
        return Scored(1.0 if is_equal else 0.0)

    def _extract(self, response: str) -> str | None:
        if self._pattern is None:
            return response
        groups = (match.group(1) for match in self._pattern.finditer(response))
        found = None
        for group in groups:
            found = group if group is not None else found
        return found

    def _normal(self, text: str) -> str:
        if self._config.strip:
            text = text.strip()
        return text.casefold() if self._config.ignore_case else text
