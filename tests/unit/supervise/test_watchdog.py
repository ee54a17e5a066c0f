"""The watchdog on small event loops: who is cancelled, what is raised, when it leaves by force."""

import asyncio
import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from parity.errors import ConfigError, DeadlineError, TrainingError
from parity.supervise.config import SuperviseConfig
from parity.supervise.page import FILE_NAME
from parity.supervise.waits import waiting
from parity.supervise.watchdog import FAILED, INTERRUPTED, Watchdog


def config(**limits: float) -> SuperviseConfig:
    return SuperviseConfig(**{"stop_timeout_s": 0.3, **limits})


class Left:
    """Stands in for the end of the process."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.words: list[BaseException] = []
        self.now = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.now.set()


def watched(tmp_path: Path, left: Left, work, **limits: float) -> None:
    with Watchdog(config(**limits), run_dir=tmp_path, leave=left) as dog:
        dog.last_words = left.words.append

        async def run() -> None:
            async with dog.attached():
                with dog.guarding():
                    await work()

        asyncio.run(run())


def test_a_run_that_ends_in_time_leaves_no_page(tmp_path: Path) -> None:
    left = Left()

    async def work() -> None:
        with waiting("driver", "a moment", deadline_s=30.0):
            await asyncio.sleep(0.2)

    watched(tmp_path, left, work)
    assert list(tmp_path.iterdir()) == []
    assert left.codes == []
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())


def test_an_overdue_wait_is_cancelled_and_raised_by_its_name(tmp_path: Path) -> None:
    left = Left()
    ended: list[str] = []

    async def work() -> None:
        try:
            with waiting("driver", "a word from afar", deadline_s=0.2, limit="some.key"):
                await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # an end in good order may await
            ended.append("in good order")

    with pytest.raises(DeadlineError, match=r"driver waited 0\.\d s for a word from afar"):
        watched(tmp_path, left, work)
    assert ended == ["in good order"]
    assert "some.key" in (tmp_path / FILE_NAME).read_text()
    assert left.codes == []


def test_what_cancelling_brings_up_does_not_hide_the_deadline(tmp_path: Path) -> None:
    async def work() -> None:
        try:
            with waiting("driver", "a word", deadline_s=0.2):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise TrainingError("broken while closing") from None

    with pytest.raises(DeadlineError, match="a word") as caught:
        watched(tmp_path, Left(), work)
    assert isinstance(caught.value.__cause__, TrainingError)


def test_an_error_of_the_runs_own_is_kept_even_if_something_cannot_end(tmp_path: Path) -> None:
    left = Left()

    async def work() -> None:
        raise TrainingError("the engine died")

    async def run(dog: Watchdog) -> None:
        async with dog.attached():
            try:
                with dog.guarding():
                    await work()
            finally:
                await asyncio.to_thread(left.now.wait, 30)  # a thread that never ends

    with (
        pytest.raises(TrainingError),
        Watchdog(config(), run_dir=tmp_path, leave=left) as dog,
    ):
        dog.last_words = left.words.append
        asyncio.run(run(dog))
    assert left.codes == [FAILED]
    assert [str(error) for error in left.words] == ["the engine died"]
    assert not (tmp_path / FILE_NAME).exists()


def test_a_part_that_gives_up_by_itself_gets_its_page_too(tmp_path: Path) -> None:
    async def work() -> None:
        raise DeadlineError("no group ended within 5 s.")

    with pytest.raises(DeadlineError):
        watched(tmp_path, Left(), work)
    assert (tmp_path / FILE_NAME).read_text().startswith("no group ended within 5 s. The run was")


def test_a_blocked_event_loop_is_told_from_a_slow_role(tmp_path: Path) -> None:
    left = Left()

    async def work() -> None:
        with waiting("driver", "a step", deadline_s=0.3):
            assert left.now.wait(30)  # blocks the loop's thread

    with pytest.raises(DeadlineError, match="the event loop"):
        watched(tmp_path, left, work, loop_timeout_s=0.3)
        raise DeadlineError(str(left.words[0]))
    assert left.codes == [FAILED]
    assert "MainThread" in (tmp_path / FILE_NAME).read_text()


def test_a_page_that_the_disk_refuses_goes_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"

    async def work() -> None:
        with waiting("driver", "a word", deadline_s=0.2):
            await asyncio.Event().wait()

    with pytest.raises(DeadlineError, match="stderr"):
        watched(gone, Left(), work)
    assert "Threads of this process" in capfd.readouterr().err


def test_two_signals_end_a_run_whose_event_loop_is_blocked(tmp_path: Path) -> None:
    left = Left()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: None)

    async def run(dog: Watchdog) -> None:
        await work()
        async with dog.attached():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            assert left.now.wait(30)

    begun_s = time.monotonic()
    with Watchdog(config(), run_dir=tmp_path, leave=left) as dog:
        asyncio.run(run(dog))
    assert left.codes == [INTERRUPTED]
    assert time.monotonic() - begun_s < 10


def test_one_signal_reaches_the_event_loop_as_ever(tmp_path: Path) -> None:
    left, seen = Left(), list[str]()

    async def run(dog: Watchdog) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: seen.append("SIGINT"))
        async with dog.attached():
            os.kill(os.getpid(), signal.SIGINT)
            while not seen:
                await asyncio.sleep(0.01)
        loop.remove_signal_handler(signal.SIGINT)

    with Watchdog(config(), run_dir=tmp_path, leave=left) as dog:
        asyncio.run(asyncio.wait_for(run(dog), 10))
    assert seen == ["SIGINT"]
    assert left.codes == []


def test_limits_must_be_positive_and_the_stall_follows_from_other_limits() -> None:
    with pytest.raises(ConfigError, match="step_timeout_s"):
        SuperviseConfig(step_timeout_s=0.0)
    assert SuperviseConfig().stall_s(10.0) == 1800.0
    assert SuperviseConfig().stall_s(5000.0) == 5000.0
    assert SuperviseConfig(stall_timeout_s=3.0).stall_s(5000.0) == 3.0


def test_every_limit_is_documented_with_its_default() -> None:
    docs = Path(__file__).parents[3] / "docs" / "reliability.md"
    rows = [line.split("|") for line in docs.read_text().splitlines() if line.startswith("| `")]
    written = {row[1].strip(" `"): row[3].strip() for row in rows if len(row) == 5}
    for each in dataclasses.fields(SuperviseConfig):
        default = "null" if each.default is None else f"{each.default:g}"
        assert written[each.name].startswith(default), each.name
