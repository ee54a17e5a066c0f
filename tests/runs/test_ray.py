"""Whole runs on a local Ray cluster: equal to one process, several ranks and replicas, endings."""

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("ray")

from parity import launch
from parity.config.schema import TrainConfig
from parity.errors import RoleError, UnsupportedError
from parity.folder import RunFolder
from parity.ledger.audit import audit
from parity.observe.summary import Summary
from parity.weights.host.endpoints import is_held

ConfigOf = Callable[..., TrainConfig]
UNTIMED = ("time/", "_s", "per_s", "device/", "bytes")
ON_RAY = "runtime=ray"


def train(config: TrainConfig, name: str) -> RunFolder:
    import dataclasses

    output = dataclasses.replace(config.output, name=name)
    assert launch.train(dataclasses.replace(config, output=output), recipe="finetune") == 0
    return RunFolder(Path(config.output.dir) / name)


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.model_dir / "model.safetensors")


def rows(folder: RunFolder) -> list[dict[str, float]]:
    found = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
    return [row for row in found if "train/loss" in row]


def untimed(row: dict[str, float]) -> dict[str, float]:
    kept = ("train/", "rollout/", "buffer/", "eval/")
    return {
        key: value
        for key, value in row.items()
        if key.startswith(kept) and not key.endswith("_s") and "per_s" not in key
    }


def trace(since: set[str]) -> list[str]:
    """Processes, sockets and shared memory of runs that are there now and weren't before."""
    left = [
        f"process {process.pid}"
        for process in psutil.Process().children(recursive=True)
        if str(process.pid) not in since and process.status() != psutil.STATUS_ZOMBIE
    ]
    return left + [path for path in private_files() if path not in since]


def private_files() -> list[str]:
    """What runs have in temporary folders, but for those that are going on elsewhere."""
    folder = Path(f"/tmp/parity-{os.getuid()}")
    runs = [run for run in folder.iterdir() if not is_held(run / ".run")] if folder.is_dir() else []
    inside = [str(path) for run in runs for path in (run, *run.rglob("*"))]
    return inside + [str(path) for path in Path("/dev/shm").glob(f"parity-{os.getuid()}-*")]


@pytest.fixture
def clean():
    """What a test starts is gone when it ends."""
    before = {str(process.pid) for process in psutil.Process().children(recursive=True)}
    before |= set(private_files())
    yield
    assert not trace(before)


def test_one_rank_and_one_engine_equal_one_process_bit_for_bit_and_leave_nothing(
    config_of: ConfigOf, clean: None
) -> None:
    words = ("rollouts.max_lag=0", "steps=3", "checkpoint.every_steps=2")
    inline = train(config_of(*words), "inline")
    remote = train(config_of(*words, ON_RAY), "remote")
    ours, theirs = weights(inline), weights(remote)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    assert [untimed(row) for row in rows(inline)] == [untimed(row) for row in rows(remote)]
    for role in ("trainer-0", "engine-0"):
        assert f"name={role}" in (remote.path / "logs" / f"{role}.log").read_text()
    assert "event=placed node 0: trainer 0 + engine 0" in remote.log_path.read_text()


def pid_of(folder: Path, role: str) -> int:
    """The process of a role, from its log."""
    text = (folder / "logs" / f"{role}.log").read_text()
    return int(text.split(f"name={role} pid=")[1].split()[0])


class Killer(threading.Thread):
    """Sends a signal to a role's process once the run has taken some steps."""

    def __init__(self, folder: Path, role: str, *, after_steps: int, number: int) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._role = role
        self._after_steps = after_steps
        self._number = number
        self.killed_s: float | None = None

    def run(self) -> None:
        metrics = self._folder / "metrics.jsonl"
        end_s = time.monotonic() + 500
        while time.monotonic() < end_s:
            if metrics.is_file() and metrics.read_text().count("train/loss") >= self._after_steps:
                os.kill(pid_of(self._folder, self._role), self._number)
                self.killed_s = time.monotonic()
                return
            time.sleep(0.02)


def killed_while_training(
    config: TrainConfig, name: str, role: str, *, after_steps: int = 2, number: int = signal.SIGKILL
) -> Killer:
    """Train, with one process killed on the way; the error of the run comes through."""
    killer = Killer(Path(config.output.dir) / name, role, after_steps=after_steps, number=number)
    killer.start()
    try:
        train(config, name)
    finally:
        killer.join(10)
    return killer


TWO_AND_TWO = (ON_RAY, "placement.trainer_ranks=2", "placement.engine_replicas=2")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_of_two_and_two_goes_on_without_a_killed_engine(
    config_of: ConfigOf, clean: None
) -> None:
    config = config_of(*TWO_AND_TWO, "steps=30", "rollouts.max_lag=1", "checkpoint.every_steps=10")
    killer = killed_while_training(config, "two", "engine-1")
    assert killer.killed_s is not None, "the engine was never killed, so the test shows nothing"
    folder = RunFolder(Path(config.output.dir) / "two")
    summary = Summary.read(folder.path)
    assert (summary.status, summary.steps) == ("finished", 30)
    found = rows(folder)
    assert [row["step"] for row in found] == list(range(1, 31))
    assert found[-1]["buffer/trained"] == 30 * config.rollouts.groups_per_step
    assert found[-1]["buffer/failed"] == 0
    assert "engine-1" in folder.log_path.read_text()
    assert weights(folder).keys() == {name for name, _ in named(folder)}


class Stopper(threading.Thread):
    """Asks the run to end in good order a few steps after a replica has joined."""

    def __init__(self, folder: Path, *, more_steps: int) -> None:
        super().__init__(daemon=True)
        self._metrics = folder / "metrics.jsonl"
        self._more_steps = more_steps
        self.is_done = threading.Event()

    def run(self) -> None:
        end_s = time.monotonic() + 500
        while time.monotonic() < end_s and not self.is_done.wait(0.2):
            text = self._metrics.read_text() if self._metrics.is_file() else ""
            lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            joined = [row for row in map(json.loads, lines) if row.get("router/joins", 0)]
            if len(joined) > self._more_steps:
                break
        if not self.is_done.is_set():
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_engine_comes_back_serves_again_and_nothing_is_lost(
    config_of: ConfigOf, clean: None
) -> None:
    words = ("placement.engine_replicas=2", "placement.router.check_interval_s=2")
    config = config_of(ON_RAY, *words, "steps=100000", "rollouts.max_lag=1", "output.name=back")
    folder = RunFolder(Path(config.output.dir) / "back")
    killer = Killer(folder.path, "engine-1", after_steps=3, number=signal.SIGKILL)
    stopper = Stopper(folder.path, more_steps=10)
    killer.start()
    stopper.start()
    try:
        code = launch.train(config, recipe="finetune")
    finally:
        stopper.is_done.set()
        stopper.join(10)
        killer.join(10)
    assert killer.killed_s is not None, "the engine was never killed, so the test shows nothing"
    assert code == launch.INTERRUPTED
    assert Summary.read(folder.path).status == "stopped"
    found = rows(folder)
    assert [row["step"] for row in found] == list(range(1, len(found) + 1))
    alive = [row["router/replicas_alive"] for row in found]
    assert [number for number, _ in itertools.groupby(alive)] == [2, 1, 2]
    assert (found[0]["router/departures"], found[0]["router/joins"]) == (0, 0)
    assert (found[-1]["router/departures"], found[-1]["router/joins"]) == (1, 1)
    assert found[-1]["buffer/failed"] == found[-1]["buffer/dropped"] == 0
    spreads = {row["router/in_flight_spread"] for row in found if row["router/replicas_alive"] == 1}
    assert min(spreads) == 0, "one replica has no lead over another"
    assert found[-1]["router/in_flight_spread"] > 0
    text = folder.log_path.read_text()
    for event in (
        "engine_restart engine=engine-1 restart=1 of=3",
        "replica_joined replica=engine-1",
    ):
        assert text.count(f"event={event}") == 1
    assert "event=engine_restart_failed" not in text
    began = (folder.path / "logs" / "engine-1.log").read_text()
    assert began.count("event=role_began name=engine-1") == 2
    proofs = audit(folder.ledger_dir)
    assert proofs.holds
    rewards = [row["rollout/raw_reward"] for row in found]
    assert sum(rewards[-10:]) > sum(rewards[:10])


def named(folder: RunFolder) -> list[tuple[str, torch.Tensor]]:
    """The exported model, loaded as any other."""
    from transformers import AutoModelForCausalLM

    from parity.models.parameters import named_weights

    return named_weights(AutoModelForCausalLM.from_pretrained(folder.model_dir))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_trainer_rank_ends_the_run_with_its_name(
    config_of: ConfigOf, clean: None, number: int
) -> None:
    config = config_of(
        *(ON_RAY, "placement.trainer_ranks=2", "steps=400", "placement.collective_timeout_s=10")
    )
    killer = Killer(Path(config.output.dir) / "lost", "trainer-1", after_steps=2, number=number)
    killer.start()
    with pytest.raises(
        RoleError,
        match=r"trainer-1 (died while it was to|did not answer)|and trainer-1 did not answer",
    ):
        train(config, "lost")
    assert killer.killed_s is not None
    assert time.monotonic() - killer.killed_s < 60
    summary = Summary.read(Path(config.output.dir) / "lost")
    assert summary.status == "failed"
    assert "trainer-1" in str(summary.reason)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_resumes_on_other_ranks_and_equals_the_unbroken_one(
    config_of: ConfigOf, clean: None
) -> None:
    words = ("rollouts.max_lag=0", "schedule.shape=constant", "optimizer.eps=1e-5")
    straight = train(config_of(*words, "steps=6"), "straight")
    broken = train(config_of(*words, "steps=3", ON_RAY, "placement.trainer_ranks=2"), "broken")
    assert launch.resume(broken.path, ["steps=6", "placement.trainer_ranks=1"]) == 0
    ours, theirs = weights(straight), weights(broken)
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    assert [row["step"] for row in rows(broken)] == [1, 2, 3, 4, 5, 6]


def test_what_the_cluster_can_never_give_is_refused_in_seconds(
    config_of: ConfigOf, clean: None
) -> None:
    config = config_of(ON_RAY, "placement.cpus_per_process=500")
    with pytest.raises(UnsupportedError, match=r"asked is node 0: 1000 CPU, and available is \d+"):
        train(config, "greedy")
    assert not (Path(config.output.dir) / "greedy").exists()  # nothing was trained
