"""Lets requests that have the same history share one slot of the cache while they do.

A lane is one history of tokens and the slot that holds its keys and values; every request
rides on one. Siblings board together and stay together as long as they draw equal tokens:

    drawn by r0 r1 r2     rides on
    a  a  a               0  0  0     one row is decoded for all three
    b  b  c               0  0  1     lane 1 began as a copy of lane 0
    d  e  f               0  2  1

Used by the scheduler only, which copies and moves in the cache what is decided here. Who
rides where is kept by request; a lane is free when nobody rides on it, so none can leak.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parity.engines.embedded.spans import length_classes

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Seating:
    """The R live requests in order of their lanes, where no lane is free."""

    rows: Ints  # [R], ascending lanes
    first: Ints  # [lanes] place in `rows` of each lane's first rider
    lanes: Ints | None  # [R]; None: one rider each, so request i rides on lane i

    @property
    def is_shared(self) -> bool:
        """Whether some lane has several riders, who may part with their next tokens."""
        return self.lanes is not None


@dataclass(frozen=True, slots=True)
class Copies:
    """Pairs of slots: what each target will hold is what its source holds now."""

    sources: Ints
    targets: Ints
    lengths: Ints  # tokens

    def by_length(self) -> Iterator["Copies"]:
        """The same in parts of similar length, so that short ones don't pay for a long one.

        In this order they mean the same only where no slot is both source and target.
        """
        classes = length_classes(self.lengths)
        for kind in np.unique(classes):
            chosen = classes == kind
            yield Copies(self.sources[chosen], self.targets[chosen], self.lengths[chosen])


class Lanes:
    """Lanes 0 to `size` - 1, and which of them each request rides on."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` bounds the requests, and so the lanes."""
        self.size = 0
        self.length: Ints = np.zeros(capacity, np.int64)  # tokens in the cache, by lane
        self.of: Ints = np.zeros(capacity, np.int64)  # by row of a live request; else unread

    def take(self, count: int, *, riders: Ints) -> Ints:
        """The lowest lanes that none of `riders` (all live rows) rides on, `count` of them."""
        free = np.flatnonzero(~self._ridden(riders))[:count]
        added = np.arange(self.size, self.size + count - len(free))
        self.size += len(added)
        return np.concatenate([free, added])

    def board(self, row: int, lane: int, *, length: int) -> None:
        """A request starts on a lane whose slot will hold the `length` tokens of its prompt."""
        self.of[row] = lane
        self.length[lane] = length

    def split(self, riders: Ints, drawn: Ints) -> Copies:
        """Give riders of one lane that drew different tokens lanes of their own.

        Args:
            riders: all live rows.
            drawn: int64 [R], the newest token of each, which isn't in the cache yet.

        Returns the copies that make it true, no slot both source and target.
        """
        spread = int(drawn.max()) + 1
        groups, group_of = np.unique(self.of[riders] * spread + drawn, return_inverse=True)
        lanes = groups // spread
        parts = np.flatnonzero(lanes[1:] == lanes[:-1]) + 1  # a lane's first group stays on it
        sources = lanes[parts]
        if not len(parts):
            return Copies(sources, sources, self.length[sources])
        targets = self.take(len(parts), riders=riders)
        self.length[targets] = self.length[sources]
        lanes[parts] = targets
        self.of[riders] = lanes[group_of]
        return Copies(sources, targets, self.length[sources])

    def close(self, riders: Ints) -> Copies:
        """Fill free lanes with the last ones; the copies that make it true.

        No slot is both source and target.
        """
        is_ridden = self._ridden(riders)
        count = int(np.count_nonzero(is_ridden))
        sources = np.flatnonzero(is_ridden[count:]) + count
        copies = self.move(sources, np.flatnonzero(~is_ridden[:count]), riders=riders)
        self.size = count
        return copies

    def move(self, sources: Ints, targets: Ints, *, riders: Ints) -> Copies:
        """Move lanes with their riders, all at once, to targets that are free or move too."""
        lengths = self.length[sources]
        place = np.arange(self.size)
        place[sources] = targets
        self.length[targets] = lengths
        self.of[riders] = place[self.of[riders]]
        return Copies(sources, targets, lengths)

    def seat(self, riders: Ints) -> Seating:
        """Who rides where, once no lane is free."""
        order = np.argsort(self.of[riders], kind="stable")
        rows = riders[order]
        lanes = self.of[rows]
        first = np.flatnonzero(np.diff(lanes, prepend=-1))
        return Seating(rows, first, lanes if len(first) < len(rows) else None)

    def _ridden(self, riders: Ints) -> Bools:
        is_ridden = np.zeros(self.size, np.bool_)
        is_ridden[self.of[riders]] = True
        return is_ridden
