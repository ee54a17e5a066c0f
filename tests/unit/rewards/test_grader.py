"""Every test here runs real grader processes."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.rewards.answers import answer

from parity.errors import ConfigError, RewardError
from parity.rewards.config import (
    ExactRewardConfig,
    FormatRewardConfig,
    GraderConfig,
    MathRewardConfig,
    PythonRewardConfig,
)
from parity.rewards.grader import GraderPool
from parity.rewards.process import child as child_module
from parity.types import GraderFailure, Scored, Unscored

MISBEHAVE = PythonRewardConfig(function="unit.rewards.answers:misbehave")
SEEN = PythonRewardConfig(function="unit.rewards.answers:seen")


def graded(config, *responses: str, **grader):
    """The results for the responses, from a pool of its own, whose processes are gone after."""

    async def run():
        async with GraderPool(config, GraderConfig(**grader)) as pool:
            pids = pool.pids
            results = await pool.grade([answer(response) for response in responses])
            pids += pool.pids
        assert not any(is_alive(pid) for pid in pids)
        return results

    return asyncio.run(run())


def is_alive(pid: int) -> bool:
    """Whether a process exists and isn't a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_with(text: str) -> list[int]:
    """The processes whose command line has `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (path / "cmdline").read_bytes() and is_alive(int(path.name)):
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def becomes_true(condition, timeout_s: float = 10.0) -> bool:
    """Look until `condition()` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.02)
    return True


async def until(condition) -> None:
    """Let the loop run until `condition()` holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def num_grading(pool) -> int:
    return len(pool._queue._current)


def test_results_are_as_many_as_the_answers_and_in_their_order():
    responses = [str(number) for number in range(100)]
    results = graded(MISBEHAVE, *responses, processes=2)
    assert results == [Scored(float(number)) for number in range(100)]


def test_no_answers_give_no_results():
    assert graded(MISBEHAVE) == []


@pytest.mark.parametrize("response", ["hang", "spin", "regex"])
def test_answer_that_hangs_costs_that_answer_alone(response):
    begin = time.monotonic()
    results = graded(MISBEHAVE, "1", response, "3", "4", timeout_s=1.0)
    assert results[0] == Scored(1.0)
    reason = "timed out after 1 s (grader.timeout_s)"
    assert results[1] == GraderFailure(reason, retryable=True, lost_process=True)
    assert results[2:] == [Scored(3.0), Scored(4.0)]
    assert time.monotonic() - begin < 20.0


def test_pattern_that_backtracks_without_end_is_stopped():
    results = graded(FormatRewardConfig(pattern="(a+)+$"), "a" * 64 + "b", "aa", timeout_s=0.5)
    assert isinstance(results[0], GraderFailure)
    assert results[1] == Scored(1.0)


@pytest.mark.parametrize(
    ("response", "named"),
    [
        ("exit", "exited with code 7"),
        ("segfault", f"signal {int(signal.SIGSEGV)}"),
        ("last-words", "something is wrong"),
        (f"kill {int(signal.SIGKILL)}", f"signal {int(signal.SIGKILL)}"),
        (f"kill {int(signal.SIGABRT)}", f"signal {int(signal.SIGABRT)}"),
    ],
)
def test_crash_costs_the_answer_that_crashed_alone(response, named):
    results = graded(MISBEHAVE, "1", response, "3", "4")
    assert [results[0], *results[2:]] == [Scored(1.0), Scored(3.0), Scored(4.0)]
    assert isinstance(results[1], GraderFailure)
    assert named in results[1].reason
    assert results[1].retryable
    assert results[1].lost_process


def test_answers_that_are_graded_alone_have_a_process_each():
    async def run():
        async with GraderPool(SEEN, GraderConfig()) as pool:
            together = await pool.grade([answer("pid")] * 3)
            alone = await pool.grade([answer("pid")] * 3, alone=True)
            return together, alone, await pool.grade([answer("pid")])

    together, alone, after = asyncio.run(run())
    assert len(set(together)) == 1
    assert len({together[0], *alone}) == 4
    assert after == [alone[-1]], "a process that had one answer is as good as any"


@pytest.mark.parametrize(
    ("response", "named", "retryable"),
    [
        ("raise", "KeyError: 'no such thing'", False),
        ("network", "ConnectionResetError", True),
        ("sys.exit", "SystemExit: enough", False),
        ("recursion", "RecursionError", False),
        ("text", "ValueError", False),
        ("nan", "nan (float)", False),
    ],
)
def test_exception_is_a_failure_and_the_process_goes_on(response, named, retryable):
    async def run():
        async with GraderPool(MISBEHAVE, GraderConfig()) as pool:
            before = pool.pids
            results = await pool.grade([answer(text) for text in ("1", response, "3")])
            assert pool.pids == before
            return results

    first, failed, last = asyncio.run(run())
    assert (first, last) == (Scored(1.0), Scored(3.0))
    assert isinstance(failed, GraderFailure)
    assert named in failed.reason
    assert failed.retryable is retryable


def test_exception_without_a_message_costs_one_answer():
    results = graded(MISBEHAVE, "stubborn", "2")
    assert isinstance(results[0], GraderFailure)
    assert results[1] == Scored(2.0)


def test_memory_bomb_is_a_failure_that_names_the_limit():
    results = graded(MISBEHAVE, "memory", "2", memory_mib=512)
    assert results == [
        GraderFailure("the reward ran out of memory (grader.memory_mib=512)", retryable=False),
        Scored(2.0),
    ]


def test_prints_and_reads_of_a_reward_do_not_reach_the_pipe():
    assert graded(MISBEHAVE, "print", "stdin", "3") == [Scored(1.0), Scored(0.0), Scored(3.0)]


def test_slow_answers_have_the_time_limit_each():
    results = graded(MISBEHAVE, *["slow 0.6"] * 3, timeout_s=1.2)
    assert results == [Scored(1.0)] * 3


def test_answer_that_cannot_be_sent_is_a_failure_of_that_answer():
    async def run():
        async with GraderPool(MISBEHAVE, GraderConfig()) as pool:
            odd = answer("1", columns={"x": object()})
            alone = await pool.grade([odd])
            return [*await pool.grade([answer("1"), odd, answer("3")]), *alone]

    first, failed, last, alone = asyncio.run(run())
    assert (first, last) == (Scored(1.0), Scored(3.0))
    assert isinstance(failed, GraderFailure) and "can't be sent" in failed.reason
    assert alone == failed


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "\U0001f600\n\r\u2028", "x" * 3_000_000])
def test_any_text_arrives(text):
    async def run():
        async with GraderPool(ExactRewardConfig(strip=False), GraderConfig()) as pool:
            return await pool.grade([answer(text, text), answer(text, text + "!")] * 3)

    assert asyncio.run(run()) == [Scored(1.0), Scored(0.0)] * 3


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.sampled_from(["good", "exit", "hang", "raise", "print"]), min_size=1, max_size=4
    ).flatmap(lambda kinds: st.permutations([*kinds, *["good"] * 8])),
    st.integers(1, 3),
)
def test_count_and_order_hold_for_any_mixture(shared_pool, kinds, num_calls):
    pool, loop = shared_pool
    responses = [str(i) if kind == "good" else kind for i, kind in enumerate(kinds)]
    kept = {"print": Scored(1.0)}

    async def run():
        call = [answer(response) for response in responses]
        return await asyncio.gather(*(pool.grade(call) for _ in range(num_calls)))

    for results in loop.run_until_complete(run()):
        assert len(results) == len(responses)
        for index, (kind, result) in enumerate(zip(kinds, results, strict=True)):
            if kind in ("exit", "hang", "raise"):
                assert isinstance(result, GraderFailure)
            else:
                assert result == kept.get(kind, Scored(float(index)))


@pytest.fixture(scope="module")
def shared_pool():
    loop = asyncio.new_event_loop()
    pool = GraderPool(MISBEHAVE, GraderConfig(processes=2, timeout_s=0.3))
    loop.run_until_complete(pool.start())
    yield pool, loop
    loop.run_until_complete(pool.close())
    loop.close()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (PythonRewardConfig(function="no.such:f"), ConfigError, "can't be imported"),
        (PythonRewardConfig(function="unit.rewards.answers:none"), ConfigError, "there is no"),
        ({"name": "exacd"}, ConfigError, "Did you mean 'exact'"),
    ],
)
def test_reward_that_cannot_be_built_is_an_error_at_start(config, error, message):
    pool = GraderPool(config, GraderConfig(processes=2))
    begin = time.monotonic()
    with pytest.raises(error, match=message):
        asyncio.run(pool.start())
    assert time.monotonic() - begin < 20.0
    assert pool.pids == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1/0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def f(:", "SyntaxError"),
        ("import os; os._exit(5)", "exited with code 5"),
        ("x = bytearray(2**33)", "grader.memory_mib is 512, which is too little"),
    ],
)
def test_module_that_breaks_while_it_is_imported_is_an_error_at_start(tmp_path, source, message):
    (tmp_path / "broken.py").write_text(source)
    config = PythonRewardConfig(function=f"{tmp_path / 'broken.py'}:f")
    with pytest.raises((RewardError, ConfigError), match=message):
        asyncio.run(GraderPool(config, GraderConfig(memory_mib=512)).start())


def test_module_that_never_finishes_its_import_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(child_module, "START_TIMEOUT_S", 1.0)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)")
    config = PythonRewardConfig(function=f"{tmp_path / 'slow.py'}:f")
    with pytest.raises(RewardError, match="didn't build the reward within 1 s"):
        asyncio.run(GraderPool(config, GraderConfig()).start())


def test_pool_that_cannot_start_processes_any_more_fails_instead_of_hanging(tmp_path):
    source = "import os\ndef f(answer):\n    os._exit(1)\n"
    (tmp_path / "once.py").write_text(source)
    config = PythonRewardConfig(function=f"{tmp_path / 'once.py'}:f")

    async def run():
        async with GraderPool(config, GraderConfig()) as pool:
            (tmp_path / "once.py").write_text("import os; os._exit(5)")
            with pytest.raises(RewardError, match="exited with code 5"):
                await pool.grade([answer("1"), answer("2")])
            with pytest.raises(RewardError, match="exited with code 5"):
                await pool.grade([answer("3")])

    asyncio.run(run())


def test_pool_that_is_not_running_refuses_answers():
    pool = GraderPool(MISBEHAVE, GraderConfig())
    with pytest.raises(RewardError, match="isn't running"):
        asyncio.run(pool.grade([answer("1")]))
    asyncio.run(pool.close())


def test_cancelled_call_frees_its_process_at_once():
    async def run():
        async with GraderPool(MISBEHAVE, GraderConfig(timeout_s=300)) as pool:
            (pid,) = pool.pids
            doomed = asyncio.create_task(pool.grade([answer("1"), answer("hang"), answer("3")]))
            other = asyncio.create_task(pool.grade([answer("4")]))
            await until(lambda: num_grading(pool) == 1)
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
            assert await asyncio.wait_for(other, 30) == [Scored(4.0)]
            assert not is_alive(pid)
            return await asyncio.wait_for(pool.grade([answer("5")]), 30)

    assert asyncio.run(run()) == [Scored(5.0)]


def test_cancelled_call_that_still_waits_is_forgotten():
    async def run():
        async with GraderPool(MISBEHAVE, GraderConfig(timeout_s=2.0)) as pool:
            first = asyncio.create_task(pool.grade([answer("slow 1")]))
            second = asyncio.create_task(pool.grade([answer("hang")] * 50))
            await until(lambda: num_grading(pool) == 1)
            second.cancel()
            assert await first == [Scored(1.0)]
            return await asyncio.wait_for(pool.grade([answer("5")]), 30)

    assert asyncio.run(run()) == [Scored(5.0)]


def test_close_ends_calls_that_wait_and_kills_what_hangs():
    async def run():
        pool = GraderPool(MISBEHAVE, GraderConfig(processes=2, timeout_s=300))
        await pool.start()
        pids = pool.pids
        waiting = asyncio.create_task(pool.grade([answer("spin")] * 8))
        await until(lambda: num_grading(pool) == 2)
        begin = time.monotonic()
        await pool.close()
        assert time.monotonic() - begin < 10.0
        with pytest.raises(RewardError, match="closed"):
            await waiting
        await pool.close()
        return pids

    assert not any(is_alive(pid) for pid in asyncio.run(run()))


def test_cancelled_start_leaves_no_process(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)")
    config = PythonRewardConfig(function=f"{tmp_path / 'slow.py'}:f")

    async def run():
        pool = GraderPool(config, GraderConfig(processes=2))
        starting = asyncio.create_task(pool.start())
        await until(lambda: len(pool.pids) == 2)
        pids = pool.pids
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return pids

    pids = asyncio.run(run())
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)


def test_blocked_event_loop_makes_no_answer_late():
    async def run():
        async with GraderPool(MISBEHAVE, GraderConfig(timeout_s=0.5)) as pool:
            grading = asyncio.create_task(pool.grade([answer("slow 0.2"), answer("2")]))
            await until(lambda: num_grading(pool) == 1)
            threading.Event().wait(1.5)  # the loop does nothing meanwhile
            return await grading

    assert asyncio.run(run()) == [Scored(1.0), Scored(2.0)]


@pytest.mark.parametrize("ending", ["child-hang {}", "child {}|exit", "child {}|hang"])
def test_what_a_reward_started_is_gone_when_its_process_is(ending):
    mark = f"parity-test-{os.getpid()}-{len(ending)}"
    results = graded(MISBEHAVE, *ending.format(mark).split("|"), "7", timeout_s=2.0)
    assert results[-1] == Scored(7.0)
    assert becomes_true(lambda: not pids_with(mark)), "a process of the reward is still alive"


DRIVER = """
import asyncio, sys
from parity.rewards.config import GraderConfig, PythonRewardConfig
from parity.rewards.grader import GraderPool
from unit.rewards.answers import answer

async def main():
    config = PythonRewardConfig(function="unit.rewards.answers:misbehave")
    pool = GraderPool(config, GraderConfig(processes=3, timeout_s=600))
    await pool.start()
    print(*pool.pids, flush=True)
    await asyncio.gather(
        pool.grade([answer("child " + sys.argv[1]), answer("regex")]),
        pool.grade([answer("spin")]),
    )

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_grader_processes_die_with_the_driver(number):
    mark = f"parity-test-driver-{os.getpid()}-{int(number)}"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, mark],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 3 and all(is_alive(pid) for pid in pids)
    assert becomes_true(lambda: len(pids_with(mark)) == 2)  # the driver and the reward's child
    driver.send_signal(number)
    driver.wait()
    driver.stdout.close()
    assert becomes_true(lambda: not any(is_alive(pid) for pid in pids))
    assert becomes_true(lambda: not pids_with(mark))


def test_idle_process_that_was_killed_is_replaced_without_blame():
    async def run():
        async with GraderPool(MISBEHAVE, GraderConfig()) as pool:
            (pid,) = pool.pids
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(becomes_true, lambda: not is_alive(pid))
            return await pool.grade([answer("1"), answer("2")])

    assert asyncio.run(run()) == [Scored(1.0), Scored(2.0)]


def test_split_and_truncation_reach_the_reward():
    async def run():
        async with GraderPool(SEEN, GraderConfig()) as pool:
            given = [
                answer("split", split="train"),
                answer("split", split="eval"),
                answer("is_truncated"),
                answer("is_truncated", is_truncated=True),
            ]
            return await pool.grade(given)

    assert asyncio.run(run()) == [Unscored(text) for text in ("train", "eval", "False", "True")]


def test_reward_runs_in_the_main_thread_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = graded(SEEN, "working directory", "first path", "is main thread", "stdin")
    assert results == [Unscored(text) for text in (str(tmp_path), str(tmp_path), "True", "''")]


def test_module_of_the_working_directory_is_importable(tmp_path, monkeypatch):
    (tmp_path / "parity_test_mine.py").write_text("def f(answer):\n    return 0.75\n")
    monkeypatch.chdir(tmp_path)
    assert graded(PythonRewardConfig(function="parity_test_mine:f"), "x") == [Scored(0.75)]


def test_environment_is_set_over_what_is_inherited(monkeypatch):
    monkeypatch.setenv("PARITY_TEST_INHERITED", "yes")

    async def run():
        environment = {"MKL_NUM_THREADS": "3", "PARITY_TEST_OWN": "a b=c"}
        async with GraderPool(SEEN, GraderConfig(), environment=environment) as pool:
            names = "PARITY_TEST_INHERITED OMP_NUM_THREADS MKL_NUM_THREADS PARITY_TEST_OWN"
            return await pool.grade([answer(name) for name in names.split()])

    assert asyncio.run(run()) == [Unscored(text) for text in ("yes", "1", "3", "a b=c")]


@pytest.mark.parametrize("name", ["exact", "numeric", "math", "format", "reasoning_gym"])
def test_no_reward_imports_torch(name):
    seen = {"name": "python", "function": SEEN.function, "label": "seen"}
    record = {"dataset": "lcm", "settings": {}, "entry": {"answer": "1", "metadata": {}}}

    async def run():
        config = {"name": "sum", "parts": [{"name": name}, seen]}
        async with GraderPool(config, GraderConfig()) as pool:
            return await pool.grade([answer("modules", "1", columns=record)])

    (result,) = asyncio.run(run())
    assert isinstance(result, Unscored)
    loaded = set(result.reason.removeprefix("seen: ").split())
    assert "parity" in loaded
    assert not loaded & {"torch", "transformers", "hydra"}


def test_driver_imports_no_library_of_a_reward():
    code = (
        "import sys; import parity.rewards.grader;"
        "print(*(name for name in sys.modules if '.' not in name))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert not set(printed.split()) & {"torch", "numpy", "sympy", "math_verify", "reasoning_gym"}


def test_math_is_graded_in_a_process_without_signals():
    results = graded(MathRewardConfig(), "\\boxed{\\frac{84}{2}}", "$41$")
    assert results == [Scored(1.0), Scored(0.0)]


def test_thousands_of_trivial_answers_are_graded_in_seconds():
    async def group(pool) -> None:
        for _ in range(25):
            assert await pool.grade([answer("42")] * 8) == [Scored(1.0)] * 8

    async def run() -> float:
        async with GraderPool(ExactRewardConfig(), GraderConfig()) as pool:
            begin = time.monotonic()
            await asyncio.gather(*(group(pool) for _ in range(20)))
            return 25 * 20 * 8 / (time.monotonic() - begin)

    # Alone on a core it is above 10,000; other work may run beside the tests.
    assert asyncio.run(run()) > 1000


def test_pool_works_in_an_event_loop_outside_the_main_thread():
    results: list = []
    thread = threading.Thread(target=lambda: results.extend(graded(MISBEHAVE, "1", "exit", "3")))
    thread.start()
    thread.join()
    assert [results[0], results[2]] == [Scored(1.0), Scored(3.0)]


def test_failure_of_a_process_quotes_only_the_end_of_its_noise():
    (result,) = graded(MISBEHAVE, "last-words")
    assert isinstance(result, GraderFailure)
    assert result.reason.startswith("the grader process exited with code 3; its stderr ended with")
    assert result.reason.endswith("something is wrong")
    assert len(result.reason) < 700
