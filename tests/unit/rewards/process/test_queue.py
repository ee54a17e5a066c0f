import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.rewards.answers import answer

from parity.errors import RewardError
from parity.rewards.process.queue import MAX_TAKE, Batch, BatchQueue
from parity.types import Scored


class Worker:
    """Stands for a lane."""

    def __init__(self) -> None:
        self.num_kills = 0

    def kill_child(self) -> None:
        self.num_kills += 1


def batch(loop: asyncio.AbstractEventLoop, size: int) -> Batch:
    return Batch(answers=[answer("")] * size, loop=loop, future=loop.create_future())


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 3), st.data())
def test_every_answer_gets_its_own_result_however_work_is_cut_and_given_back(
    loop, sizes, num_lanes, data
):
    queue = BatchQueue(num_lanes)
    batches = [batch(loop, size) for size in sizes]
    for one in batches:
        queue.put(one)
    lanes = [Worker() for _ in range(num_lanes)]
    taken: dict[Worker, tuple[Batch, list[int]]] = {}
    while not all(len(one.results) == len(one.answers) for one in batches):
        lane = data.draw(st.sampled_from(lanes))
        if lane in taken:
            _, indices = taken.pop(lane)
            num_done = data.draw(st.integers(1, len(indices)))
            results = {i: Scored(float(i)) for i in indices[:num_done]}
            assert queue.finish(lane, results, indices[num_done:])
        elif any(one.todo for one in batches):
            work = queue.take(lane)
            assert work is not None
            assert 1 <= len(work[1]) <= MAX_TAKE
            taken[lane] = work
    outcomes = loop.run_until_complete(asyncio.gather(*(one.future for one in batches)))
    assert outcomes == [[Scored(float(i)) for i in range(size)] for size in sizes]


def test_lone_batch_is_shared_among_the_lanes(loop):
    queue = BatchQueue(num_lanes=4)
    queue.put(batch(loop, 8))
    work = queue.take(Worker())
    assert work is not None
    assert work[1] == [0, 1]


def test_dropped_batch_is_neither_taken_nor_delivered_and_its_work_is_stopped(loop):
    queue = BatchQueue(num_lanes=2)
    dropped, kept = batch(loop, 4), batch(loop, 1)
    queue.put(dropped)
    queue.put(kept)
    lane, other = Worker(), Worker()
    work = queue.take(lane)
    assert work is not None and work[0] is dropped
    queue.drop(dropped)
    assert lane.num_kills == 1
    next_work = queue.take(other)
    assert next_work is not None and next_work[0] is kept
    assert other.num_kills == 0
    assert not queue.finish(lane, {0: Scored(1.0)}, work[1][1:])
    assert queue.finish(other, {0: Scored(1.0)}, [])
    assert loop.run_until_complete(kept.future) == [Scored(1.0)]
    assert not dropped.future.done()


def test_failure_reaches_those_who_wait_and_those_who_come_later(loop):
    queue = BatchQueue(num_lanes=1)
    waiting = batch(loop, 1)
    queue.put(waiting)
    queue.fail(RewardError("first"))
    queue.fail(RewardError("second"))
    assert queue.take(Worker()) is None
    with pytest.raises(RewardError, match="first"):
        loop.run_until_complete(waiting.future)
    with pytest.raises(RewardError, match="first"):
        queue.put(batch(loop, 1))


def test_lane_that_waits_is_woken_by_work_and_by_failure(loop):
    queue = BatchQueue(num_lanes=1)
    taken = []
    lane = Worker()

    def work() -> None:
        while (found := queue.take(lane)) is not None:
            taken.append(found[1])
            queue.finish(lane, {i: Scored(0.0) for i in found[1]}, [])

    thread = threading.Thread(target=work)
    thread.start()
    one = batch(loop, 3)
    queue.put(one)
    assert loop.run_until_complete(one.future) == [Scored(0.0)] * 3
    queue.fail(RewardError("closed"))
    thread.join(10)
    assert not thread.is_alive()
    assert [index for indices in taken for index in indices] == [0, 1, 2]
