"""Rewards that fork, flood, close, lie and run away: each costs its own answer and no more.

Every test here runs real grader processes.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from unit.rewards.answers import answer
from unit.rewards.test_grader import becomes_true, graded, is_alive, pids_with

from parity.errors import RewardError
from parity.rewards.config import GraderConfig, PythonRewardConfig
from parity.rewards.grader import GraderPool
from parity.types import GraderFailure, Scored, Unscored

HOSTILE = PythonRewardConfig(function="unit.rewards.hostile:score")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no subreaper")


def failure_of(result: object) -> GraderFailure:
    assert isinstance(result, GraderFailure), result
    return result


@ON_LINUX
@pytest.mark.parametrize("ending", ["exit", "abort", "hang", "group", "|exit-in-order"])
def test_fifty_daemons_that_ignore_signals_are_gone_with_their_process(ending: str) -> None:
    mark = f"parity-test-daemons-{os.getpid()}-{ending.strip('|')}"
    number = 50 if ending == "exit" else 5
    deed = "daemons" if ending.startswith("|") else f"daemons-{ending}"
    first, second = graded(
        HOSTILE, f"{deed} {number} {mark}", "7", timeout_s=4.0 if ending == "hang" else 20.0
    )
    assert second == Scored(7.0)
    if deed == "daemons":
        assert first == Scored(1.0)
    else:
        assert failure_of(first).lost_process
    assert becomes_true(lambda: not pids_with(mark)), "a daemon of the reward is still alive"


@ON_LINUX
def test_a_reward_that_multiplies_is_ended_by_the_bound_and_told_it() -> None:
    first, second = graded(HOSTILE, "bomb 7", "7", timeout_s=30.0, max_children=40)
    assert second == Scored(7.0)
    assert "grader.max_children" in failure_of(first).reason


def test_a_reward_that_comes_back_twice_gives_no_answer_another_ones_score() -> None:
    responses = ["fork", "2", "3", "fork-raises", "5", "6"]
    assert graded(HOSTILE, *responses) == [Scored(float(n)) for n in (1, 2, 3, 1, 5, 6)]


@ON_LINUX
def test_without_memory_the_kernel_ends_the_grader_before_the_run() -> None:
    (result,) = graded(HOSTILE, "first-to-go")
    assert result == Scored(1000.0)
    assert Path("/proc/self/oom_score_adj").read_text() != "1000\n"


def test_noise_without_end_is_neither_kept_nor_waited_for() -> None:
    results = graded(HOSTILE, "flood 256", "thread", "2", "flood 64", timeout_s=60.0)
    assert results == [Scored(1.0), Scored(1.0), Scored(2.0), Scored(1.0)]


def test_closed_descriptors_cost_one_answer_at_most() -> None:
    results = graded(HOSTILE, "close-std", "2", "away", "close-all", "5")
    assert [results[0], results[1], results[4]] == [Scored(1.0), Scored(2.0), Scored(5.0)]
    assert "Away" in failure_of(results[2]).reason
    assert failure_of(results[3]).lost_process


def test_a_reward_that_moves_leaves_the_next_answer_where_it_was(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert graded(HOSTILE, "moves", "where") == [Scored(1.0), Unscored(str(tmp_path))]


def test_a_working_directory_that_is_gone_ends_the_pool_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)

    async def run() -> None:
        async with GraderPool(HOSTILE, GraderConfig()) as pool:
            first, second = await pool.grade([answer("removes-folder"), answer("2")])
            assert first == Scored(1.0)
            assert str(folder) in failure_of(second).reason
            with pytest.raises(RewardError, match="can't be started") as caught:
                await pool.grade([answer("3")], alone=True)
            assert str(folder) in str(caught.value)

    asyncio.run(run())


def test_a_reward_deaf_to_every_signal_is_ended_in_time() -> None:
    first, second = graded(HOSTILE, "deaf", "2", timeout_s=1.0)
    assert "timed out" in failure_of(first).reason
    assert second == Scored(2.0)


@ON_LINUX
@pytest.mark.parametrize("deed", ["kill-parent", "stop-parent"])
def test_a_reward_that_attacks_its_parent_costs_its_answer(deed: str) -> None:
    first, second = graded(HOSTILE, deed, "2", timeout_s=2.0)
    reason = failure_of(first).reason
    assert ("killed by signal 9" if deed == "kill-parent" else "timed out") in reason
    assert second == Scored(2.0)


@ON_LINUX
def test_nothing_is_left_where_the_guarding_process_was_killed() -> None:
    mark = f"parity-test-guard-{os.getpid()}"

    async def run() -> object:
        async with GraderPool(HOSTILE, GraderConfig()) as pool:
            (guard,) = pool.pids
            children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
            (grader,) = map(int, children)
            os.kill(guard, signal.SIGKILL)
            assert await asyncio.to_thread(becomes_true, lambda: not is_alive(grader))
            return await pool.grade([answer("2")])

    assert asyncio.run(run()) == [Scored(2.0)]
    assert becomes_true(lambda: not pids_with(mark))


@pytest.mark.parametrize(
    ("response", "named"),
    [
        ("away", "Away: from keyboard or test"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "CancelledError"),
        ("unprintable", "Unprintable"),
        ("lie", "must be finite"),
        ("lying-part", "part 'part' of a reward is nan"),
        ("reason-number", "reason of an Unscored is int 5; it must be text"),
        ("reason-bytes", "reason of a GraderFailure is bytes; it must be text"),
        ("many-parts", "bytes long; at most"),
        ("big 100", "str '1111"),
        ("big-number", "too large for a float"),
    ],
)
def test_what_breaks_the_contract_is_a_failure_and_the_process_goes_on(shared, response, named):
    pool, run = shared
    before = pool.pids
    first, second = run(pool.grade([answer(response), answer("2")]))
    assert named in failure_of(first).reason
    assert not failure_of(first).retryable
    assert len(failure_of(first).reason) < 3000
    assert second == Scored(2.0)
    assert pool.pids == before


@pytest.fixture(scope="module")
def shared():
    """A pool for answers that its one process survives, and what runs its coroutines."""
    with asyncio.Runner() as runner:
        pool = GraderPool(HOSTILE, GraderConfig(timeout_s=30.0))
        runner.run(pool.start())
        yield pool, runner.run
        runner.run(pool.close())


def test_messages_and_values_of_any_size_are_bounded() -> None:
    first, second, third = graded(HOSTILE, "long-message", "big-reason", "3", timeout_s=60.0)
    assert "ValueError: xxx" in failure_of(first).reason
    assert isinstance(second, Unscored)
    assert len(second.reason) < 3000
    assert third == Scored(3.0)


def test_an_error_whose_message_never_comes_is_ended_in_time() -> None:
    first, second = graded(HOSTILE, "slow-message", "2", timeout_s=1.0)
    assert "timed out" in failure_of(first).reason
    assert second == Scored(2.0)
