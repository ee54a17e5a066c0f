"""What the groups of one step say about generation, as declared metrics.

Only what is known is reported: a mean over nothing is left out, never 0.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import fmean, pstdev

from parity.errors import TrainingError
from parity.types import NO_VERSION, Episode, GraderFailure, Group, Scored, Unscored


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, lengths and shares over the episodes of `groups`."""
    episodes = [episode for group in groups for episode in group.episodes]
    rewards = [e.reward.value for e in episodes if isinstance(e.reward, Scored)]
    lengths = [float(episode.num_response_tokens) for episode in episodes]
    spreads = [len(set(values)) > 1 for group in groups if (values := _values(group))]
    known = {
        "rollout/raw_reward": rewards,
        "rollout/response_tokens_mean": lengths,
        "rollout/prompt_tokens_mean": [float(len(group.task.tokens)) for group in groups],
        "rollout/truncated_share": [float(e.finish_reason == "length") for e in episodes],
        "rollout/scored_share": [float(isinstance(e.reward, Scored)) for e in episodes],
        "rollout/unscored_share": [float(isinstance(e.reward, Unscored)) for e in episodes],
        "rollout/failed_share": [float(isinstance(e.reward, GraderFailure)) for e in episodes],
        "rollout/zero_spread_share": [float(not spread) for spread in spreads],
    }
    metrics = {name: fmean(values) for name, values in known.items() if values}
    if rewards:
        metrics["rollout/reward_std"] = pstdev(rewards)
    if lengths:
        metrics["rollout/response_tokens_max"] = max(lengths)
    return metrics


def _values(group: Group) -> list[float]:
    return [value for value in group.rewards if value is not None]


def check_lag(episodes: Iterable[Episode], *, version: int, bound: int) -> None:
    """Raise TrainingError where a token isn't of the last `bound` versions: it can't be trained."""
    versions = set[int]().union(*[episode.versions for episode in episodes]) - {NO_VERSION}
    if versions and not version - bound <= min(versions) <= max(versions) <= version:
        raise TrainingError(
            f"a token has a lag of {version - min(versions)} versions (least: "
            f"{version - max(versions)}) at version {version}; rollouts.max_lag allows 0 to "
            f"{bound}. This is a bug of the buffer, please report it."
        )


def lag_metrics(episodes: Iterable[Episode], *, version: int) -> dict[str, float]:
    """Mean and largest lag of the tokens that were trained while `version` was live."""
    numbers = Counter(chain.from_iterable([episode.versions for episode in episodes]))
    numbers.pop(NO_VERSION, None)
    if not numbers:
        return {}
    total = sum((version - of) * number for of, number in numbers.items())
    return {
        "rollout/lag_mean": total / sum(numbers.values()),
        "rollout/lag_max": float(version - min(numbers)),
    }
