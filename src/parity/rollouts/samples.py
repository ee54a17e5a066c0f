"""Groups become trainable samples: advantages inside each group, spread over its tokens."""

import math
from collections.abc import Iterator, Sequence

import torch

from parity.types import Episode, Group, Sample, Scored


def reward_table(groups: Sequence[Group]) -> torch.Tensor:
    """Rewards [G, N] in float64; NaN where an episode has no value (or a group is smaller)."""
    width = max(len(group.episodes) for group in groups)
    rows = [
        [math.nan if value is None else value for value in group.rewards]
        + [math.nan] * (width - len(group.episodes))
        for group in groups
    ]
    return torch.tensor(rows, dtype=torch.float64)


def to_samples(groups: Sequence[Group], advantages: torch.Tensor) -> list[Sample]:
    """One sample per scored episode that has tokens to train on, in the order of the groups.

    An unscored episode makes no sample, so it enters neither a loss nor a denominator.

    Args:
        groups: the groups of one step.
        advantages: [G, N], one per episode.
    """
    return [
        Sample(
            group=group.index,
            tokens=episode.tokens,
            loss_mask=episode.loss_mask,
            logprobs=episode.logprobs,
            versions=episode.versions,
            advantages=_spread(value, episode.loss_mask),
        )
        for group, episode, value in _with_values(groups, advantages)
        if isinstance(episode.reward, Scored) and True in episode.loss_mask
    ]


def _spread(value: float, mask: tuple[bool, ...]) -> tuple[float, ...]:
    """The advantage on trained tokens, 0 elsewhere."""
    num_off = mask.count(False)
    if True in mask[:num_off]:  # not only at the beginning
        return tuple(value if is_trained else 0.0 for is_trained in mask)
    return (0.0,) * num_off + (value,) * (len(mask) - num_off)


def by_episode(groups: Sequence[Group], advantages: torch.Tensor) -> dict[str, float | None]:
    """Advantage by episode id; None where the episode has no reward."""
    return {
        episode.episode_id: value if isinstance(episode.reward, Scored) else None
        for _, episode, value in _with_values(groups, advantages)
    }


def _with_values(
    groups: Sequence[Group], advantages: torch.Tensor
) -> Iterator[tuple[Group, Episode, float]]:
    for group, row in zip(groups, advantages.tolist(), strict=True):
        for episode, value in zip(group.episodes, row, strict=False):
            yield group, episode, value
