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


def lag_metrics(episodes: Iterable[Episode], *, version: int, bound: int) -> dict[str, float]:
    """Mean and largest lag of the tokens about to be trained under `version`.

    Raises TrainingError where a token is older than `bound` versions: it must not be trained.
    """
    numbers = Counter(chain.from_iterable([episode.versions for episode in episodes]))
    numbers.pop(NO_VERSION, None)
    lags = {version - of: number for of, number in numbers.items()}  # number of tokens by lag
    if not lags:
        return {}
    if max(lags) > bound or min(lags) < 0:
        raise TrainingError(
            f"a token has a lag of {max(lags)} versions (least: {min(lags)}) at version {version}; "
            f"rollouts.max_lag allows 0 to {bound}. This is a bug of the buffer, please report it."
        )
    mean = sum(lag * number for lag, number in lags.items()) / sum(lags.values())
    return {"rollout/lag_mean": mean, "rollout/lag_max": float(max(lags))}
