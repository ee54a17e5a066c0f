import asyncio
import threading

import pytest

from parity.observe.names import check
from parity.observe.timer import PhaseTimer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(clock: Clock) -> PhaseTimer:
    return PhaseTimer(clock=clock)


def test_a_step_has_its_phases_and_the_total_keeps_all(timer: PhaseTimer, clock: Clock) -> None:
    for seconds in (3.0, 5.0):
        with timer.phase("train"):
            clock.pass_s(seconds)
        clock.pass_s(1.0)
        step = timer.step()
        assert step.seconds == {"train": seconds}
        assert step.elapsed_s == seconds + 1
    assert timer.total().seconds == {"train": 8.0}
    assert timer.total().elapsed_s == 10.0


def test_a_phase_that_raises_counts_too(timer: PhaseTimer, clock: Clock) -> None:
    with pytest.raises(RuntimeError), timer.phase("train"):
        clock.pass_s(2.0)
        raise RuntimeError
    assert timer.step().seconds == {"train": 2.0}


def test_a_phase_that_goes_on_is_split_at_the_step(timer: PhaseTimer, clock: Clock) -> None:
    with timer.phase("generate"):
        clock.pass_s(2.0)
        assert timer.step().seconds == {"generate": 2.0}
        clock.pass_s(3.0)
        assert timer.total().seconds == {"generate": 5.0}
    assert timer.step().seconds == {"generate": 3.0}


def test_nested_phases_exclude_each_other(timer: PhaseTimer, clock: Clock) -> None:
    with timer.phase("train"):
        clock.pass_s(1.0)
        with timer.phase("publish"):
            clock.pass_s(2.0)
        clock.pass_s(4.0)
    step = timer.step()
    assert step.seconds == {"train": 5.0, "publish": 2.0}
    assert sum(step.seconds.values()) == step.elapsed_s


def test_a_phase_inside_itself_counts_once(timer: PhaseTimer, clock: Clock) -> None:
    with timer.phase("train"), timer.phase("train"):
        clock.pass_s(2.0)
    assert timer.step().seconds == {"train": 2.0}


def test_tasks_overlap_and_one_phase_of_many_tasks_counts_once(
    timer: PhaseTimer, clock: Clock
) -> None:
    async def work(name: str, started: asyncio.Event, end: asyncio.Event) -> None:
        with timer.phase(name):
            started.set()
            await end.wait()

    async def main() -> None:
        events = [(asyncio.Event(), asyncio.Event()) for _ in range(3)]
        names = ("generate", "generate", "train")
        async with asyncio.TaskGroup() as group:
            for name, (started, end) in zip(names, events, strict=True):
                group.create_task(work(name, started, end))
            for started, _ in events:
                await started.wait()
            clock.pass_s(2.0)  # all three
            events[0][1].set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            clock.pass_s(3.0)  # one generates, one trains
            events[2][1].set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            clock.pass_s(5.0)  # one generates
            events[1][1].set()

    asyncio.run(main())
    step = timer.step()
    assert step.seconds == {"generate": 10.0, "train": 5.0}
    assert step.elapsed_s == 10.0


def test_a_task_begun_inside_a_phase_is_not_nested_in_it(timer: PhaseTimer, clock: Clock) -> None:
    async def child() -> None:
        with timer.phase("generate"):
            clock.pass_s(1.0)

    async def main() -> None:
        with timer.phase("train"):
            await asyncio.create_task(child())

    asyncio.run(main())
    assert timer.step().seconds == {"train": 1.0, "generate": 1.0}


def test_threads_count_apart_from_each_other(timer: PhaseTimer, clock: Clock) -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with timer.phase("generate"):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    with timer.phase("train"):
        clock.pass_s(2.0)
    leave.set()
    thread.join()
    assert timer.step().seconds == {"generate": 2.0, "train": 2.0}


def test_many_threads_lose_nothing(timer: PhaseTimer) -> None:
    def work() -> None:
        for _ in range(200):
            with timer.phase("a"), timer.phase("b"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timer.total().seconds == {"a": 0.0, "b": 0.0}
    with timer.phase("a"):
        pass
    assert timer.step().seconds == {"a": 0.0, "b": 0.0}


def test_metrics_are_declared_and_unknown_phases_stay_unknown(
    timer: PhaseTimer, clock: Clock
) -> None:
    with timer.phase("train"):
        clock.pass_s(3.0)
    with timer.phase("wait"):
        clock.pass_s(1.0)
    metrics = timer.step().metrics()
    check(metrics)
    assert metrics["time/step_s"] == 4.0
    assert metrics["time/train_share"] == 0.75
    assert metrics["time/wait_share"] == 0.25
    assert metrics["time/generate_share"] is None
    assert metrics["time/engine_idle_share"] is None
    assert metrics["time/eval_s"] is None


def test_a_known_phase_that_did_not_happen_in_a_step_took_no_time(
    timer: PhaseTimer, clock: Clock
) -> None:
    with timer.phase("eval"):
        clock.pass_s(3.0)
    timer.step()
    clock.pass_s(1.0)
    assert timer.step().metrics()["time/eval_s"] == 0.0


def test_seconds_measured_elsewhere_count(timer: PhaseTimer, clock: Clock) -> None:
    timer.add("generate", 1.5)
    clock.pass_s(2.0)
    step = timer.step()
    assert step.share("generate") == 0.75
    assert step.metrics()["time/engine_idle_share"] == 0.25
    with pytest.raises(ValueError, match="seconds"):
        timer.add("generate", float("nan"))


def test_a_step_of_no_length_has_no_shares(timer: PhaseTimer) -> None:
    with timer.phase("train"):
        pass
    assert timer.step().share("train") is None
