"""The buffer bounds lag, loses nothing, ends every wait."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable

import pytest
from fakes import group
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import TrainingError
from parity.rollouts.buffer import Buffer, Dropped
from parity.rollouts.config import RolloutsConfig
from parity.types import Group, Scored

SCORED = (Scored(0.0), Scored(1.0))


async def ticks(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


class Simulation:
    """Produce, train and publish with chosen durations; records the lag of every group."""

    def __init__(
        self,
        config: RolloutsConfig,
        *,
        steps: int,
        duration: Callable[[int], int],
        is_dropped: Callable[[int], bool] = lambda index: False,
        train_ticks: int = 3,
    ) -> None:
        self.config, self.steps = config, steps
        self.buffer = Buffer(config, steps=steps)
        self.duration, self.is_dropped, self.train_ticks = duration, is_dropped, train_ticks
        self.started: dict[int, int] = {}
        self.lags: list[int] = []
        self.trained: list[list[int]] = []
        self.most_in_flight = 0

    async def run_group(self, index: int) -> Group | Dropped:
        await ticks(self.duration(index))
        if self.is_dropped(index):
            return Dropped(index, "zero_spread")
        return group(index, SCORED, version=self.started[index])

    async def produce(self) -> None:
        index = 0
        while True:
            await self.buffer.slot()
            self.started[index] = self.buffer.version
            self.buffer.start(index, lambda index=index: self.run_group(index))
            self.most_in_flight = max(self.most_in_flight, self.buffer.counts.in_flight)
            index += 1

    async def train(self) -> None:
        producer = asyncio.create_task(self.produce())
        try:
            for step in range(1, self.steps + 1):
                groups = await self.buffer.take()
                self.lags += [self.buffer.version - self.started[g.index] for g in groups]
                self.trained.append([g.index for g in groups])
                await ticks(self.train_ticks)
                if step % self.config.steps_per_publish == 0:
                    self.buffer.release(self.buffer.version + 1)
                self.buffer.counts.check()
        finally:
            producer.cancel()
            await self.buffer.close("run_ended")
        self.buffer.counts.check()


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


@given(
    groups_per_step=st.integers(1, 4),
    max_lag=st.sampled_from([0.0, 0.5, 1.0, 1.75, 2.0, 3.0, 4.0]),
    steps_per_publish=st.integers(1, 3),
    longest=st.integers(1, 60),
    drop_share=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=120, deadline=None)
def test_no_group_is_trained_past_the_bound_and_none_is_lost(
    groups_per_step: int,
    max_lag: float,
    steps_per_publish: int,
    longest: int,
    drop_share: float,
    seed: int,
) -> None:
    config = RolloutsConfig(
        groups_per_step=groups_per_step, max_lag=max_lag, steps_per_publish=steps_per_publish
    )
    noise = random.Random(seed)
    simulation = Simulation(
        config,
        steps=6 * steps_per_publish,
        duration=lambda index: noise.randrange(longest),
        is_dropped=lambda index: noise.random() < drop_share,
        train_ticks=noise.randrange(12),
    )
    run(simulation.train())
    assert max(simulation.lags) <= math.ceil(max_lag)
    assert simulation.most_in_flight <= config.capacity
    flat = [index for step in simulation.trained for index in step]
    assert len(flat) == len(set(flat)), "a group was trained twice"
    counts = simulation.buffer.counts
    assert counts.trained == 6 * steps_per_publish * groups_per_step
    assert counts.in_flight == 0


def test_a_slow_group_is_waited_for_only_when_the_bound_demands_it() -> None:
    config = RolloutsConfig(groups_per_step=2, max_lag=2.0)
    simulation = Simulation(config, steps=6, duration=lambda index: 10_000 if index == 0 else 1)
    run(simulation.train())
    step_of_slow = next(n for n, step in enumerate(simulation.trained) if 0 in step)
    assert step_of_slow == 2  # versions 0, 1 pass; at version 2 = its bound it is waited for


def test_finished_first_goes_first_and_young_groups_are_not_favoured_for_ever() -> None:
    config = RolloutsConfig(groups_per_step=1, max_lag=1.0)
    simulation = Simulation(config, steps=4, duration=lambda index: 30 if index == 0 else 1)
    run(simulation.train())
    assert simulation.trained[0] == [1]
    assert simulation.trained[1] == [0]


def test_synchronous_steps_take_groups_in_the_order_of_issue() -> None:
    config = RolloutsConfig(groups_per_step=3, max_lag=0.0)
    noise = random.Random(3)
    simulation = Simulation(config, steps=5, duration=lambda index: noise.randrange(20))
    run(simulation.train())
    assert simulation.trained == [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(5)]
    assert set(simulation.lags) == {0}


def test_nothing_is_issued_that_no_step_will_take() -> None:
    config = RolloutsConfig(groups_per_step=2, max_lag=4.0)
    simulation = Simulation(config, steps=3, duration=lambda index: 2)
    run(simulation.train())
    assert simulation.buffer.counts.issued == 6


def test_dropped_groups_are_replaced_and_counted_by_reason() -> None:
    config = RolloutsConfig(groups_per_step=2, max_lag=1.0)
    simulation = Simulation(
        config, steps=4, duration=lambda index: 1, is_dropped=lambda index: index % 3 == 0
    )
    run(simulation.train())
    counts = simulation.buffer.counts
    assert counts.trained == 8
    assert counts.dropped["zero_spread"] >= 3


def test_endless_dropping_ends_with_a_reason() -> None:
    config = RolloutsConfig(groups_per_step=2, max_lag=1.0, max_drops_per_step=7)
    simulation = Simulation(
        config, steps=2, duration=lambda index: 1, is_dropped=lambda index: True
    )
    with pytest.raises(TrainingError, match=r"8 groups in a row.*too easy"):
        run(simulation.train())


def test_the_error_of_a_group_reaches_take() -> None:
    async def body() -> None:
        buffer = Buffer(RolloutsConfig(groups_per_step=1, max_lag=0.0), steps=1)

        async def fail() -> Group | Dropped:
            raise TrainingError("engine gone")

        buffer.start(0, fail)
        with pytest.raises(TrainingError, match="engine gone"):
            await buffer.take()
        await buffer.close("failed")
        buffer.counts.check()

    run(body())


def test_close_cancels_and_counts_what_was_in_flight() -> None:
    async def body() -> None:
        buffer = Buffer(RolloutsConfig(groups_per_step=2, max_lag=1.0), steps=4)
        cancelled: list[int] = []

        async def endless(index: int) -> Group | Dropped:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(index)
                raise
            raise AssertionError("unreachable")

        for index in range(3):
            await buffer.slot()
            buffer.start(index, lambda index=index: endless(index))
        await ticks(2)
        await buffer.close("run_ended")
        assert cancelled == [0, 1, 2]
        assert buffer.counts.dropped == {"run_ended": 3}

    run(body())


def synchronous_log(config: RolloutsConfig, steps: int, durations: list[int], dropped: int) -> str:
    """What happened in turn: `+3` a group begins, `-3` it ends, `!` a step takes its groups."""
    log: list[str] = []

    async def body() -> None:
        buffer = Buffer(config, steps=steps)

        async def one(index: int) -> Group | Dropped:
            await ticks(durations[index])
            log.append(f"-{index}")
            return Dropped(index, "zero_spread") if index == dropped else group(index, SCORED)

        async def produce() -> None:
            for index in range(len(durations)):
                await buffer.slot()
                log.append(f"+{index}")
                buffer.start(index, lambda index=index: one(index))

        producer = asyncio.create_task(produce())
        for step in range(1, steps + 1):
            await buffer.take()
            log.append("!")
            if step % config.steps_per_publish == 0:
                buffer.release(buffer.version + 1)
        producer.cancel()
        await buffer.close("run_ended")

    run(body())
    return " ".join(log)


def test_a_synchronous_dropped_group_is_replaced_when_all_others_have_finished() -> None:
    config = RolloutsConfig(groups_per_step=2, max_lag=0.0)
    log = synchronous_log(config, 2, [1, 40, 1, 1, 1], dropped=0)
    assert log == "+0 +1 -0 -1 +2 -2 ! +3 +4 -3 -4 !"


def test_synchronous_training_begins_when_nothing_generates_any_more() -> None:
    config = RolloutsConfig(groups_per_step=1, max_lag=0.0, steps_per_publish=2)
    log = synchronous_log(config, 4, [1, 40, 1, 40], dropped=-1)
    assert log == "+0 +1 -0 -1 ! ! +2 +3 -2 -3 ! !"


def test_of_what_is_finished_the_first_to_finish_goes_first() -> None:
    config = RolloutsConfig(groups_per_step=1, max_lag=2.0)
    durations = {0: 40, 1: 20, 2: 1}
    simulation = Simulation(
        config, steps=3, duration=lambda index: durations[index], train_ticks=100
    )
    run(simulation.train())
    assert simulation.trained == [[2], [1], [0]]


def test_only_drops_without_a_step_between_them_count_as_in_a_row() -> None:
    config = RolloutsConfig(groups_per_step=1, max_lag=0.0, max_drops_per_step=2)
    simulation = Simulation(
        config, steps=4, duration=lambda index: 1, is_dropped=lambda index: index % 3 != 2
    )
    run(simulation.train())
    assert simulation.trained == [[2], [5], [8], [11]]


def test_twenty_batches_of_drops_are_too_many_where_nothing_else_is_said() -> None:
    config = RolloutsConfig(groups_per_step=2, max_lag=0.0)
    simulation = Simulation(
        config, steps=1, duration=lambda index: 1, is_dropped=lambda index: True
    )
    with pytest.raises(TrainingError, match="41 groups in a row"):
        run(simulation.train())


def test_a_step_has_its_groups_in_the_order_of_issue_however_they_finished() -> None:
    config = RolloutsConfig(groups_per_step=2, max_lag=1.0)
    simulation = Simulation(config, steps=2, duration=lambda index: 30 - 10 * index)
    run(simulation.train())
    assert simulation.trained == [[2, 3], [0, 1]]


def test_a_group_with_recorded_tokens_is_as_old_as_they_are() -> None:
    async def body() -> None:
        buffer = Buffer(RolloutsConfig(groups_per_step=1, max_lag=1.0), steps=2, version=2)
        is_let_go = asyncio.Event()

        async def recorded() -> Group | Dropped:
            await is_let_go.wait()
            return group(0, SCORED, version=1)

        async def new() -> Group | Dropped:
            return group(1, SCORED, version=2)

        buffer.start(0, recorded, version=1)
        buffer.start(1, new)
        taking = asyncio.create_task(buffer.take())
        await ticks(20)
        assert not taking.done(), "the old group can be trained by no later step"
        is_let_go.set()
        assert [found.index for found in await taking] == [0]
        await buffer.close("run_ended")

    run(body())


def test_of_several_errors_the_first_is_told() -> None:
    async def body() -> None:
        buffer = Buffer(RolloutsConfig(groups_per_step=2, max_lag=0.0), steps=1)

        async def fail(index: int) -> Group | Dropped:
            await ticks(index)
            raise TrainingError(f"error {index}")

        buffer.start(0, lambda: fail(3))
        buffer.start(1, lambda: fail(1))
        await ticks(20)
        with pytest.raises(TrainingError, match="error 1"):
            await buffer.take()
        await buffer.close("failed")

    run(body())
