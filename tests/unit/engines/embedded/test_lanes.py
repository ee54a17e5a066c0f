"""Requests ride together as long as their histories are equal, and no lane is ever lost."""

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.embedded.lanes import Copies, Lanes

Ints = npt.NDArray[np.int64]


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def boarded(*lanes: int, length: int = 3) -> Lanes:
    """Request i rides on lanes[i]."""
    found = Lanes(capacity=8)
    found.take(max(lanes) + 1, riders=ints())
    for row, lane in enumerate(lanes):
        found.board(row, lane, length=length + lane)
    return found


def pairs(copies: Copies) -> list[tuple[int, int, int]]:
    found = (copies.sources.tolist(), copies.targets.tolist(), copies.lengths.tolist())
    return list(zip(*found, strict=True))


def test_riders_that_drew_different_tokens_part_and_equal_ones_stay_together() -> None:
    lanes = boarded(0, 0, 0, 1, 1)
    copies = lanes.split(np.arange(5), ints(7, 2, 7, 7, 7))
    assert pairs(copies) == [(0, 2, 3)]
    assert lanes.of[:5].tolist() == [2, 0, 2, 1, 1]
    assert lanes.length[:3].tolist() == [3, 4, 3]
    seating = lanes.seat(np.arange(5))
    assert seating.rows.tolist() == [1, 3, 4, 0, 2]
    assert seating.first.tolist() == [0, 1, 3]
    assert seating.lanes is not None
    assert seating.lanes.tolist() == [0, 1, 1, 2, 2]
    assert seating.is_shared


def test_a_fork_takes_a_lane_that_nobody_rides_on_any_more() -> None:
    lanes = boarded(0, 1, 2, 2)
    copies = lanes.split(ints(0, 2, 3), ints(5, 5, 6))  # request 1 has ended
    assert pairs(copies) == [(2, 1, 5)]
    assert lanes.size == 3
    assert not lanes.seat(ints(0, 2, 3)).is_shared


def test_the_last_lanes_fill_the_free_ones() -> None:
    lanes = boarded(0, 1, 2, 3, 3)
    copies = lanes.close(ints(1, 3, 4))
    assert pairs(copies) == [(3, 0, 6)]
    assert lanes.size == 2
    assert lanes.of[[1, 3, 4]].tolist() == [1, 0, 0]
    assert pairs(lanes.close(ints(1, 3, 4))) == []


def test_lanes_move_with_their_riders_all_at_once() -> None:
    lanes = boarded(0, 1, 1, 2)
    copies = lanes.move(ints(0, 1), ints(1, 0), riders=np.arange(4))
    assert pairs(copies) == [(0, 1, 3), (1, 0, 4)]
    assert lanes.of[:4].tolist() == [1, 0, 0, 2]
    assert lanes.length[:3].tolist() == [4, 3, 5]


def test_short_lanes_are_not_copied_with_a_long_one() -> None:
    copies = Copies(ints(0, 1, 2, 3), ints(4, 5, 6, 7), ints(10, 3000, 60, 2500))
    assert [pairs(part) for part in copies.by_length()] == [
        [(0, 4, 10), (2, 6, 60)],
        [(1, 5, 3000), (3, 7, 2500)],
    ]
    assert list(Copies(ints(), ints(), ints()).by_length()) == []


class Model:
    """What lanes stand for, kept the slow way: the history of each request and each slot."""

    def __init__(self, capacity: int) -> None:
        self.lanes = Lanes(capacity=capacity)
        self.capacity = capacity
        self.history: dict[int, tuple[object, ...]] = {}
        self.slots: dict[int, tuple[object, ...]] = {}

    @property
    def riders(self) -> Ints:
        return np.array(sorted(self.history), np.int64)

    def admit(self, prompt: object, count: int) -> None:
        free = [row for row in range(self.capacity) if row not in self.history][:count]
        if free:
            (lane,) = self.lanes.take(1, riders=self.riders).tolist()
            self.slots[lane] = (prompt,)
            for row in free:
                self.history[row] = (prompt,)
                self.lanes.board(row, lane, length=1)

    def copy(self, copies: Copies, *, is_disjoint: bool = True) -> None:
        held = dict(self.slots)
        targets = copies.targets.tolist()
        assert len(set(targets)) == len(targets)
        if is_disjoint:
            assert not set(copies.sources.tolist()) & set(targets)
        for source, target, length in pairs(copies):
            assert length == len(held[source])
            self.slots[target] = held[source]

    def decode(self, drawn: dict[int, int], shuffle: random.Random) -> None:
        """The order of calls of the scheduler; one token for every live request."""
        lanes, riders = self.lanes, self.riders
        self.copy(lanes.split(riders, np.array([drawn[row] for row in riders], np.int64)))
        self.copy(lanes.close(riders))
        order = list(range(lanes.size))
        shuffle.shuffle(order)
        moves = lanes.move(np.arange(lanes.size), np.array(order), riders=riders)
        self.copy(moves, is_disjoint=False)
        seating = lanes.seat(riders)
        assert sorted(seating.rows.tolist()) == riders.tolist()
        assert len(seating.first) == lanes.size
        for lane, row in enumerate(seating.rows[seating.first].tolist()):
            assert lanes.length[lane] == len(self.slots[lane])
            self.slots[lane] = (*self.slots[lane], drawn[row])
        lanes.length[: lanes.size] += 1
        for row in riders.tolist():
            self.history[row] = (*self.history[row], drawn[row])


@given(data=st.data(), capacity=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_request_reads_its_own_history_whatever_comes_and_goes(
    data: st.DataObject, capacity: int
) -> None:
    model = Model(capacity)
    shuffle = random.Random(data.draw(st.integers(0, 99)))
    for number in range(data.draw(st.integers(1, 8))):
        model.admit(f"p{number}", data.draw(st.integers(0, 5)))
        for row in data.draw(st.lists(st.sampled_from([*model.history, -1]), max_size=3)):
            model.history.pop(row, None)
        if not model.history:
            continue
        model.decode({row: data.draw(st.integers(0, 2)) for row in model.history}, shuffle)
        for row, history in model.history.items():
            assert model.slots[int(model.lanes.of[row])] == history
        assert model.lanes.size == len(set(model.history.values()))
    free = model.lanes.take(capacity, riders=ints())
    assert free.tolist() == list(range(capacity))


@pytest.mark.parametrize("count", [1, 3])
def test_taking_lanes_prefers_free_ones_over_new_ones(count: int) -> None:
    lanes = boarded(0, 1, 2)
    assert lanes.take(count, riders=ints(1)).tolist() == [0, 2, 3][:count]
    assert lanes.size == max(3, count + 1)
