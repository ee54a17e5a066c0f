"""`reward.name=sum`: the weighted sum of other rewards, each reported as a part.

value = sum of weight * value over the parts. Where one part is unscored the whole is: a sum
without it would be another reward. Otherwise a part that failed makes the whole fail. Reported
parts are the unweighted values under their labels, and `label/name` for the parts of a part.
"""

from parity.errors import ConfigError
from parity.rewards.config import SumRewardConfig, label_of, weight_of
from parity.rewards.reward import Reward, checked
from parity.rewards.section import build
from parity.types import Answer, GraderFailure, RewardResult, Scored, Unscored


class SumReward(Reward):
    """Adds rewards up."""

    def __init__(self, config: SumRewardConfig) -> None:
        self._weights: dict[str, float] = {}
        self._rewards: dict[str, Reward] = {}
        for index, part in enumerate(config.parts):
            label = label_of(part, index)
            section = {key: value for key, value in part.items() if key not in ("weight", "label")}
            self._weights[label] = weight_of(part, index)
            try:
                self._rewards[label] = build(section)
            except ConfigError as error:
                raise ConfigError(f"parts.{index}: {error}") from error

    def score(self, answer: Answer) -> RewardResult:
        """The sum, or why there is none."""
        results = {label: checked(part.score(answer)) for label, part in self._rewards.items()}
        for label, result in results.items():
            if isinstance(result, Unscored):
                return Unscored(f"{label}: {result.reason}")
        value = 0.0
        parts: dict[str, float] = {}
        for label, result in results.items():
            if isinstance(result, GraderFailure):
                return GraderFailure(f"{label}: {result.reason}", retryable=result.retryable)
            assert isinstance(result, Scored), f"{result!r} is no RewardResult"
            value += self._weights[label] * result.value
            parts[label] = result.value
            parts |= {f"{label}/{name}": part for name, part in result.parts.items()}
        return checked(Scored(value, parts))
