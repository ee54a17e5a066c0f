"""Groups become trainable samples: advantages inside each group, spread over its tokens."""

import math
from collections.abc import Callable, Sequence

import torch

from parity.types import Group, Sample, Scored

Advantage = Callable[[torch.Tensor], torch.Tensor]


def reward_table(groups: Sequence[Group]) -> torch.Tensor:
    """Rewards [G, N] in float64; NaN where an episode has no value (or a group is smaller)."""
    width = max(len(group.episodes) for group in groups)
    rows = [
        [math.nan if value is None else value for value in group.rewards]
        + [math.nan] * (width - len(group.episodes))
        for group in groups
    ]
    return torch.tensor(rows, dtype=torch.float64)


def to_samples(groups: Sequence[Group], advantage: Advantage) -> list[Sample]:
    """One sample per scored episode that has tokens to train on, in the order of the groups.

    An unscored episode makes no sample, so it enters neither a loss nor a denominator.

    Args:
        groups: the groups of one step.
        advantage: rewards [G, N] with NaN for unscored -> advantages [G, N].
    """
    table = advantage(reward_table(groups)).tolist()
    return [
        Sample(
            group=group.index,
            tokens=episode.tokens,
            loss_mask=episode.loss_mask,
            logprobs=episode.logprobs,
            versions=episode.versions,
            advantages=tuple(value if trained else 0.0 for trained in episode.loss_mask),
            num_prompt_tokens=len(group.task.tokens),
        )
        for group, row in zip(groups, table, strict=True)
        for episode, value in zip(group.episodes, row, strict=False)
        if isinstance(episode.reward, Scored) and any(episode.loss_mask)
    ]
