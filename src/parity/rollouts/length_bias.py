"""Whether long answers are trained as often as short ones: a test over what was issued.

Compared are the response lengths of the episodes that were issued with those that were
trained, over a window of groups in the order of issue. Only groups before the oldest one in
flight count, so nothing is missing merely because it isn't decided yet. Two exceptions make
starving and cutting visible: a group in flight since before a whole window of trained groups
counts as issued and not trained, and an episode without a known length (ended by its time
limit, or of such a group) ranks above every known length: it was longer than there was time for.

The statistic is that of Mann and Whitney (1947), with ties. With x the n trained lengths and y
the m lengths that weren't trained:

    r    = P(x > y) - P(x < y)             = 2 U / (n m) - 1, rank-biserial, in [-1, 1]
    bias = P(trained > issued) - P(trained < issued) = r m / (n + m)

since "issued" is both together and the trained against themselves give 0. Below 0: short ones
are favoured. Siblings share their prompt and so their length, and are dropped together; so the
normal approximation of U counts a group as one observation: z is divided by the root of the
group size. That can only make the p-value larger.

THE RULE for a warning (`observe/advice.py`): |bias| > 0.05 and p < 0.001 at a step.

Dropping groups by reward (Yu et al. 2025, DAPO, section 3.2) may shift lengths too: then this says
so, rightly, as what is trained isn't what was issued.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from parity.rollouts.group import Record
from parity.types import Episode, Group, Json, RewardResult

LENGTHS_IN_WINDOW = 2048  # episodes, but at least twice as many groups as may be in flight
Lengths = Sequence[int | None]  # response tokens per sibling; None: longer than there was time for


@dataclass(frozen=True, slots=True)
class RankSum:
    """Two samples compared by ranks."""

    effect: float  # P(x > y) - P(x < y), in [-1, 1]
    p_value: float  # two-sided


def rank_sum(x: Lengths, y: Lengths, *, siblings: int = 1) -> RankSum:
    """Mann and Whitney's test of two samples, neither empty; None ranks above every number.

    Args:
        siblings: how many values count as one observation, >= 1.
    """
    if not x or not y:
        raise ValueError(f"both samples need a value; they have {len(x)} and {len(y)}.")
    n, m = len(x), len(y)
    values = np.array([math.inf if value is None else value for value in (*x, *y)])
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    upper = np.cumsum(counts)
    ranks = (upper - (counts - 1) / 2)[places]  # ties share their mean rank
    wins = float(ranks[:n].sum()) - n * (n + 1) / 2
    effect = 2 * wins / (n * m) - 1
    total = n + m
    tied = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = n * m / 12 * (total + 1 - tied / (total * (total - 1)))
    if variance <= 0:  # all values are equal
        return RankSum(0.0, 1.0)
    distance = max(0.0, abs(wins - n * m / 2) - 0.5)
    z = distance / math.sqrt(variance * siblings)
    return RankSum(effect, math.erfc(z / math.sqrt(2)))


class LengthBias(Record):
    """Listens to what becomes of episodes on its way to `record`; event loop only."""

    def __init__(
        self, record: Record, *, capacity: int, group_size: int, state: Json = None
    ) -> None:
        """`capacity` is how many groups may be in flight at once; `state` is of a checkpoint."""
        self._record = record
        self._group_size = group_size
        # A group may see all others that are in flight trained before it: that isn't starving.
        self._window = max(2 * capacity, LENGTHS_IN_WINDOW // group_size)
        self._lengths: dict[int, dict[int, int | None]] = {}  # by group, by sibling
        self._trained: set[int] = set()
        self._waits_since: dict[int, int] = {}  # in flight: groups trained when it was first seen
        self._num_trained = 0
        if state is not None:
            self._load(state)

    def state(self) -> Json:
        """What the window holds, for a checkpoint; groups in flight are generated or reused."""
        return [
            [index, index in self._trained, [self._lengths[index][n] for n in sorted(lengths)]]
            for index, lengths in sorted(self._lengths.items())
            if index not in self._waits_since
        ]

    def _load(self, state: Json) -> None:
        assert isinstance(state, list), f"the window of lengths is {state!r}"
        for group in state:
            match group:
                case [int(index), bool(is_trained), [*lengths]]:
                    known = (n if isinstance(n, int) else None for n in lengths)
                    self._lengths[index] = dict(enumerate(known))
                    if is_trained:
                        self._trained.add(index)
                case _:
                    raise AssertionError(f"a group of the window of lengths is {group!r}")

    def generated(
        self, group: int, episodes: Sequence[Episode], *, sampling_attempts: Sequence[int] = ()
    ) -> None:
        """Episodes have all their tokens; one that its time limit ended has no known length."""
        self._record.generated(group, episodes, sampling_attempts=sampling_attempts)
        self._note(group, episodes)

    def reused(self, group: Group) -> None:
        """A group comes with the episodes that an earlier process made and recorded."""
        self._note(group.index, group.episodes)

    def _note(self, group: int, episodes: Sequence[Episode]) -> None:
        self._lengths[group] = {
            sibling: None if episode.finish_reason == "abort" else episode.num_response_tokens
            for sibling, episode in enumerate(episodes)
        }

    def scored(self, group: int, rewards: Sequence[RewardResult]) -> None:
        """Episodes have their final result."""
        self._record.scored(group, rewards)

    def admitted(self, group: int) -> None:
        """A group will be trained."""
        self._record.admitted(group)

    def ended(
        self, group: int, outcome: Literal["dropped", "failed"], *, reason: str, detail: str = ""
    ) -> None:
        """A group won't be trained."""
        self._record.ended(group, outcome, reason=reason, detail=detail)

    def step(self, groups: Sequence[Group], in_flight: Sequence[int]) -> dict[str, float]:
        """The metrics after a step; nothing while no trained group is decided.

        Args:
            groups: what the step trained.
            in_flight: indices of the groups that are issued and neither trained nor dropped.
        """
        self._trained.update(group.index for group in groups)
        self._num_trained += len(groups)
        self._waits_since = {
            index: self._waits_since.get(index, self._num_trained) for index in in_flight
        }
        return self._compared(*self._samples())

    def _samples(self) -> tuple[list[int], list[int | None]]:
        """Lengths that were trained, and those that were issued and weren't."""
        decided, starved = self._decided()
        trained: list[int] = []
        others: list[int | None] = [None] * (len(starved) * self._group_size)
        for index in decided:
            for length in self._lengths[index].values():
                if index in self._trained and length is not None:
                    trained.append(length)
                else:  # a sibling that its time limit ended isn't trained, though its group is
                    others.append(length)
        return trained, others

    def _decided(self) -> tuple[list[int], list[int]]:
        """The newest window of groups whose fate is known; and the starved ones."""
        starved = [
            index
            for index, since in self._waits_since.items()
            if self._num_trained - since >= self._window
        ]
        horizon = min(self._waits_since.keys() - set(starved), default=math.inf)
        known = sorted(self._lengths.keys() - set(starved))
        decided = [index for index in known if index < horizon]
        for index in decided[: -self._window]:
            del self._lengths[index]
            self._trained.discard(index)
        return decided[-self._window :], starved

    def _compared(self, trained: list[int], others: list[int | None]) -> dict[str, float]:
        if not trained:
            return {}
        if not others:
            return {"rollout/length_bias": 0.0, "rollout/length_bias_p": 1.0}
        found = rank_sum(trained, others, siblings=self._group_size)
        share = len(others) / (len(trained) + len(others))
        return {
            "rollout/length_bias": found.effect * share,
            "rollout/length_bias_p": found.p_value,
        }
