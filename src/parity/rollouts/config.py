"""What a run file may say about generating: sampling, group arithmetic, lag (no torch here)."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from parity import checks
from parity.errors import ConfigError

InFlight = Literal["finish", "continue", "restart"]


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How training answers are sampled."""

    max_new_tokens: int = 256  # answer length bound, >= 1
    temperature: float = 1.0  # > 0: training at 0 has no distribution to learn from
    top_p: float = 1.0  # in (0, 1]; 1 is off
    top_k: int = 0  # >= 0; 0 is off
    stop: tuple[str, ...] = ()  # texts that end an answer

    def __post_init__(self) -> None:
        checks.at_least("max_new_tokens", self.max_new_tokens, 1)
        checks.above("temperature", self.temperature, 0.0)
        checks.within("top_p", self.top_p, 1e-6, 1.0)
        checks.at_least("top_k", self.top_k, 0)


@dataclass(frozen=True, kw_only=True)
class RolloutsConfig:
    """How many groups a step takes, and how far generation may run ahead of training."""

    groups_per_step: int = 32  # groups that one optimizer step consumes, >= 1
    group_size: int = 8  # sibling episodes per task, >= 1
    max_lag: float = 1.0  # 0: synchronous; see docs/asynchrony.md
    steps_per_publish: int = 1  # optimizer steps between two publications, >= 1
    in_flight: InFlight = "continue"  # what a publication does to unfinished generations
    drop_zero_spread: bool = False  # dynamic sampling: drop groups whose rewards are all equal
    max_drops_per_step: int | None = None  # dropped groups before a step gives up; null: 20 batches
    max_failed_share: float = 0.1  # failed episodes over issued before the run ends, in [0, 1]
    episode_timeout_s: float = 600.0  # bound on one episode, generation and grading, > 0
    max_retries: int = 2  # of an episode whose engine or grader broke, >= 0

    def __post_init__(self) -> None:
        checks.at_least("groups_per_step", self.groups_per_step, 1)
        checks.at_least("group_size", self.group_size, 1)
        checks.at_least("max_lag", self.max_lag, 0.0)
        checks.at_least("steps_per_publish", self.steps_per_publish, 1)
        checks.one_of("in_flight", self.in_flight, get_args(InFlight))
        if self.max_drops_per_step is not None:
            checks.at_least("max_drops_per_step", self.max_drops_per_step, 1)
        checks.within("max_failed_share", self.max_failed_share, 0.0, 1.0)
        checks.above("episode_timeout_s", self.episode_timeout_s, 0.0)
        checks.at_least("max_retries", self.max_retries, 0)
        if self.drop_zero_spread and self.group_size == 1:
            raise ConfigError(
                "drop_zero_spread is true with group_size=1, and a group of one never has a spread;"
                " set group_size=2 or more, or drop_zero_spread=false."
            )

    @property
    def capacity(self) -> int:
        """Groups that may be in flight at once."""
        groups = self.groups_per_step * self.steps_per_publish
        return groups + math.floor(round(groups * self.max_lag, 9))
