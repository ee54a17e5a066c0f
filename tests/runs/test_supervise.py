"""Nothing hangs: a stuck part ends the run within its limit, with a page that tells the truth.

Parts that only the end of the process can end are tried in processes of their own (`faults.py`);
the others in this one, where the watchdog's last resort lets the stuck part go instead.
"""

import asyncio
import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parity import launch
from parity.config.schema import TrainConfig
from parity.engines.embedded.scheduler import Scheduler
from parity.errors import DeadlineError, EngineError, ParityError
from parity.observe.summary import Summary
from parity.supervise.page import FILE_NAME
from parity.supervise.watchdog import Watchdog
from parity.training.trainer import Trainer
from parity.weights.direct import DirectTransfer

ConfigOf = Callable[..., TrainConfig]
HERE = Path(__file__).parent
SOON_S = 20.0  # the bound on every end here: seconds of limits, the rest for a busy machine


class Stuck:
    """A part that waits in its thread until the watchdog's last resort lets it go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: list[int] = []
        self._let_go = threading.Event()
        monkeypatch.setattr(launch, "Watchdog", functools.partial(Watchdog, leave=self.leave))

    def leave(self, code: int) -> None:
        self.codes.append(code)
        self._let_go.set()

    def __call__(self, *_: object, **__: object) -> None:
        assert self._let_go.wait(60), "nobody ended the process"
        raise RuntimeError("the stuck part was let go")


def broken_off(config: TrainConfig, kind: type[ParityError]) -> tuple[str, Path]:
    """Run until it breaks off as it must; the message, and the run folder."""
    named = dataclasses.replace(config, output=dataclasses.replace(config.output, name="stuck"))
    began_s = time.monotonic()
    with pytest.raises(kind) as caught:
        launch.train(named, recipe="finetune")
    assert time.monotonic() - began_s < SOON_S
    folder = Path(config.output.dir) / "stuck"
    summary = Summary.read(folder)
    assert (summary.status, summary.reason) == ("failed", str(caught.value))
    return str(caught.value), folder


def test_a_trainer_that_hangs_ends_the_run_with_a_page(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stuck = Stuck(monkeypatch)
    monkeypatch.setattr(Trainer, "step", stuck)
    config = config_of("supervise.step_timeout_s=1", "supervise.stop_timeout_s=1")
    message, folder = broken_off(config, DeadlineError)
    assert "the trainer's step 1" in message
    assert "supervise.step_timeout_s" in message
    page = (folder / FILE_NAME).read_text()
    assert re.search(r"driver waits for the trainer's step 1 since \d+\.\d s \(allowed: 1 s", page)
    assert re.search(r"trainer: took up a call, \d", page)
    threads = page.partition("Threads of this process")[2]
    trainer = threads.partition("Thread trainer_0")[2].partition("\nThread ")[0]
    assert "test_supervise.py" in trainer, "the page doesn't show where the trainer is"
    assert "parity.rewards.worker" in page.partition("Child processes")[2]
    shown = capfd.readouterr().err
    assert shown.startswith(page.splitlines()[0])
    assert stuck.codes == [1]


def test_an_engine_that_hangs_is_named_with_its_thread(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck(monkeypatch)
    monkeypatch.setattr(Scheduler, "step", stuck)
    config = config_of("supervise.stall_timeout_s=1", "supervise.stop_timeout_s=1")
    message, folder = broken_off(config, DeadlineError)
    assert "supervise.stall_timeout_s" in message
    threads = (folder / FILE_NAME).read_text().partition("Threads of this process")[2]
    engine = threads.partition("Thread parity-decode_0")[2].partition("\nThread ")[0]
    assert "test_supervise.py" in engine
    assert stuck.codes == [1]


def test_a_publication_that_hangs_ends_the_run_in_good_order(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck(monkeypatch)

    async def publish(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(DirectTransfer, "publish", publish)
    message, folder = broken_off(config_of("supervise.publish_timeout_s=1"), DeadlineError)
    assert "the publication of version 1" in message
    page = (folder / FILE_NAME).read_text()
    tasks = page.partition("Tasks of the event loop")[2].partition("Threads of")[0]
    assert "publish (test_supervise.py" in tasks
    assert not stuck.codes, "an end in good order was possible"


@pytest.mark.parametrize(
    ("reward", "state"), [("hangs_always", "S (sleeping)"), ("freezes", "T (stopped)")]
)
def test_a_grader_that_hangs_within_its_own_limit_is_shown_as_it_is(
    config_of: ConfigOf, reward: str, state: str
) -> None:
    config = config_of(
        f"reward.function={HERE / 'graders.py'}:{reward}",
        "grader.timeout_s=1000",
        "supervise.stall_timeout_s=2",
        "rollouts.max_lag=0",
    )
    _, folder = broken_off(config, DeadlineError)
    page = (folder / FILE_NAME).read_text()
    grader = page.rpartition("parity.rewards.worker")[2]  # the one before is its warden
    assert f"State: {state}" in grader.partition("Process ")[0]


def test_a_frozen_grader_costs_no_answer_and_not_the_run(
    config_of: ConfigOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the reward keeps its mark
    config = config_of(
        f"reward.function={HERE / 'graders.py'}:freezes_once",
        "grader.timeout_s=1",
        "output.name=recovers",
        "rollouts.max_failed_share=0.0",
        "eval.every_steps=null",
    )
    assert launch.train(config, recipe="finetune") == 0
    folder = Path(config.output.dir) / "recovers"
    assert Summary.read(folder).status == "finished"
    assert (tmp_path / "frozen-once").exists()
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    names = ("rollout/scored_share", "eval/scored_share")
    shares = [line[name] for line in lines for name in names if name in line]
    assert shares.count(1.0) == len(shares), shares
    assert not (folder / FILE_NAME).exists()


@pytest.mark.parametrize("role", ["trainer", "engine"])
def test_a_role_that_dies_ends_the_run_with_its_own_error(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise EngineError(f"the {role} has had enough")

    monkeypatch.setattr(Trainer if role == "trainer" else Scheduler, "step", dies)
    message, folder = broken_off(config_of(), EngineError)
    assert f"the {role} has had enough" in message
    assert not (folder / FILE_NAME).exists()


class Process:
    """One command line with a fault (`faults.py`), seen from outside."""

    def __init__(self, fault: str, cwd: Path) -> None:
        self.folder = cwd / "runs" / fault
        self._fault, self._cwd = fault, cwd

    def _read(self, kind: str) -> str:
        path = self._cwd / f"{self._fault}.{kind}"
        return path.read_text() if path.exists() else ""

    def wait_until_stuck(self) -> None:
        deadline_s = time.monotonic() + 200
        while self._read("out") != "stuck\n":
            assert not self._read("code"), self._read("err")
            assert time.monotonic() < deadline_s, self._read("err")
            time.sleep(0.05)

    def interrupt(self) -> None:
        os.kill(int(self._read("pid")), signal.SIGINT)

    def end(self) -> tuple[int, str]:
        deadline_s = time.monotonic() + 60
        while not self._read("code"):
            assert time.monotonic() < deadline_s, self._read("err")
            time.sleep(0.05)
        return int(self._read("code")), self._read("err")

    def kill(self) -> None:
        if self._read("pid") and not self._read("code"):
            os.kill(int(self._read("pid")), signal.SIGKILL)


@pytest.fixture(scope="module")
def processes(
    tiny_dir: Path, tasks_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Process]]:
    """Started together: most of their time is importing."""
    words = [
        *("train", "finetune", f"model.path={tiny_dir}", f"tasks.path={tasks_path}"),
        *("tasks.chat=false", "sampling.max_new_tokens=4", "display=none", "eval.num_tasks=4"),
        *("prompts.max_prompt_tokens=16", "rollouts.groups_per_step=2", "rollouts.group_size=2"),
        *("supervise.stop_timeout_s=1", "trackers.names=[jsonl]"),
    ]
    plans = {
        "trainer": words,
        "event_loop": [*words, "supervise.loop_timeout_s=1"],
        "interpreter": [*words, "supervise.loop_timeout_s=1"],
    }
    cwd = tmp_path_factory.mktemp("processes")
    parent = subprocess.Popen(
        [sys.executable, str(HERE / "faults.py"), json.dumps(plans)],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    started = {fault: Process(fault, cwd) for fault in plans}
    yield started
    for process in started.values():
        process.kill()
    parent.kill()
    parent.wait()


def test_a_blocked_event_loop_ends_with_a_page_and_the_failure_code(
    processes: dict[str, Process],
) -> None:
    process = processes["event_loop"]
    process.wait_until_stuck()
    began_s = time.monotonic()
    code, error = process.end()
    assert time.monotonic() - began_s < SOON_S
    assert code == 1, error
    assert "the event loop to answer" in error
    page = (process.folder / FILE_NAME).read_text()
    main = page.partition("Thread MainThread")[2].partition("\nThread ")[0]
    assert "in event_loop" in main
    summary = json.loads((process.folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "the event loop to answer" in summary["reason"]


def test_c_code_that_keeps_the_interpreters_lock_ends_too(processes: dict[str, Process]) -> None:
    process = processes["interpreter"]
    process.wait_until_stuck()
    began_s = time.monotonic()
    code, error = process.end()
    assert time.monotonic() - began_s < SOON_S
    assert code == -signal.SIGKILL, error
    assert "C code keeps the interpreter's lock" in error
    page = (process.folder / FILE_NAME).read_text()
    assert re.search(r'File ".*faults\.py", line \d+ in interpreter', page)
    assert re.search(r"\n  \d+ \S+: [A-Z] ", page.partition("as the kernel sees them")[2])
    assert not (process.folder / "summary.json").exists(), "nothing claims that it finished"


def test_a_second_ctrl_c_ends_a_run_at_once_though_its_trainer_is_stuck(
    processes: dict[str, Process],
) -> None:
    process = processes["trainer"]
    process.wait_until_stuck()
    process.interrupt()
    time.sleep(0.5)
    began_s = time.monotonic()
    process.interrupt()
    code, error = process.end()
    assert time.monotonic() - began_s < SOON_S / 2
    assert code == launch.INTERRUPTED, error
    assert Summary.read(process.folder).status == "stopped"
