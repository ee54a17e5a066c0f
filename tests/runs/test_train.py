"""Whole runs on the CPU: learning, reproducibility, lag, resume, endings."""

import asyncio
import dataclasses
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from parity import launch, loop
from parity.build import open_run
from parity.config.schema import TrainConfig
from parity.errors import ConfigError, EvaluationError
from parity.folder import RunFolder
from parity.observe.dashboard.quiet import QuietDisplay
from parity.observe.summary import Summary
from parity.observe.tracking import Trackers
from parity.rollouts.dump import read
from parity.rollouts.group import Grader, GroupRunner
from parity.rollouts.samples import reward_table, to_samples
from parity.run import Run
from parity.types import Answer, RewardResult

ConfigOf = Callable[..., TrainConfig]


def train(config: TrainConfig, name: str) -> RunFolder:
    named = dataclasses.replace(config, output=dataclasses.replace(config.output, name=name))
    assert launch.train(named, recipe="finetune") == 0
    return RunFolder(Path(config.output.dir) / name)


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(folder.model_dir / "model.safetensors")


def assert_equal_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, f"not equal bit for bit: {different}"


def rows(folder: RunFolder) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in folder.metrics_path.read_text().splitlines()]
    return [line for line in lines if "train/loss" in line]


def untimed(row: dict[str, float]) -> dict[str, float]:
    timed = ("unix_s", "attempt", "time/", "rollout/tokens_per_s", "train/step_s", "buffer/")
    timed = (*timed, "device/", "publish/gigabytes_per_s")
    timed = (*timed, *(f"publish/{phase}_s" for phase in ("begin", "buckets", "verify", "commit")))
    return {k: v for k, v in row.items() if not k.startswith(timed)}


async def with_run(
    config: TrainConfig, tmp_path: Path, work: Callable[[Run], object]
) -> dict[str, torch.Tensor]:
    """Open a run, let `work` drive it, and give back the weights."""
    platform, threads, _ = launch.prepare(config, max_lag=config.rollouts.max_lag)
    async with open_run(
        config,
        folder=RunFolder(Path(tempfile.mkdtemp(dir=tmp_path))),
        platform=platform,
        threads=threads,
        display=QuietDisplay(),
        trackers=Trackers({}),
    ) as run:
        await work(run)  # pyright: ignore
        return {name: tensor.clone() for name, tensor in run.trainer.named_weights()}


@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_run_learns_and_leaves_a_whole_folder(config_of: ConfigOf, max_lag: int) -> None:
    config = config_of("steps=24", f"rollouts.max_lag={max_lag}", "optimizer.lr=1e-2")
    folder = train(config, "learns")
    steps = rows(folder)
    assert [row["step"] for row in steps] == list(range(1, 25))
    early = sum(row["rollout/raw_reward"] for row in steps[:3]) / 3
    late = sum(row["rollout/raw_reward"] for row in steps[-3:]) / 3
    assert late > early + 0.2, (early, late)
    summary = Summary.read(folder.path)
    assert (summary.status, summary.steps) == ("finished", 24)
    assert summary.eval_first is not None
    assert summary.train_seconds is not None
    for path in (folder.config_path, folder.log_path, folder.model_dir / "config.json"):
        assert path.is_file(), path
    assert len(list(folder.episodes_dir.glob("step_*.jsonl"))) == 24
    assert max(row["rollout/lag_max"] for row in steps) == max_lag
    mismatch = max(row["train/train_rollout_logprob_abs_diff"] for row in steps)
    assert mismatch < (1e-4 if max_lag == 0 else 1.5)
    assert "event=platform name=cpu" in folder.log_path.read_text()
    assert 0 < steps[-1]["device/memory_used_share"] < 1
    assert "device/power_w" not in steps[-1]  # psutil doesn't know it, and it isn't 0


def test_two_synchronous_runs_with_one_seed_are_equal_bit_for_bit(config_of: ConfigOf) -> None:
    config = config_of("rollouts.max_lag=0", "steps=5")
    first, second = train(config, "first"), train(config, "second")
    assert_equal_weights(weights(first), weights(second))
    assert [untimed(row) for row in rows(first)] == [untimed(row) for row in rows(second)]
    other = train(dataclasses.replace(config, seed=1), "other")
    assert not torch.equal(weights(first)["model.norm.weight"], weights(other)["model.norm.weight"])


@pytest.mark.parametrize("drop", ["false", "true"])
def test_lag_zero_equals_strictly_alternating_phases_bit_for_bit(
    config_of: ConfigOf, tmp_path: Path, drop: str
) -> None:
    config = config_of("rollouts.max_lag=0", f"rollouts.drop_zero_spread={drop}", "steps=4")
    by_loop = asyncio.run(with_run(config, tmp_path, loop.train))

    async def alternate(run: Run) -> None:
        """All groups of a step side by side, then the step, then the publication."""
        await run.parts.evaluator.run()
        for _ in range(config.steps):
            groups = []
            while len(groups) < config.rollouts.groups_per_step:
                missing = config.rollouts.groups_per_step - len(groups)
                drawn = [run.issuer.next() for _ in range(missing)]
                outcomes = await asyncio.gather(*map(run.run_group, drawn))
                groups += [outcome for outcome in outcomes if hasattr(outcome, "episodes")]
            samples = to_samples(groups, run.advantage(reward_table(groups)))
            await run.runtime.in_trainer(lambda samples=samples: run.trainer.step(samples))
            await loop.publish(run)

    by_hand = asyncio.run(with_run(config, tmp_path, alternate))
    assert_equal_weights(by_loop, by_hand)


class Dawdling:
    """A grader that takes its time, differently every time."""

    def __init__(self, grader: Grader, seed: int) -> None:
        self._grader = grader
        self._noise = random.Random(seed)

    async def grade(self, answers: Sequence[Answer], *, alone: bool = False) -> list[RewardResult]:
        await asyncio.sleep(self._noise.choice([0.0, 0.0, 0.01, 0.05]))
        return await self._grader.grade(answers)


@pytest.mark.parametrize(
    ("max_lag", "steps_per_publish", "in_flight"),
    [(1, 1, "continue"), (0.5, 1, "restart"), (3, 2, "continue"), (2, 1, "finish")],
)
def test_no_token_is_trained_past_the_bound_under_random_timings(
    config_of: ConfigOf, tmp_path: Path, max_lag: float, steps_per_publish: int, in_flight: str
) -> None:
    config = config_of(
        "steps=8",
        f"rollouts.max_lag={max_lag}",
        f"rollouts.steps_per_publish={steps_per_publish}",
        f"rollouts.in_flight={in_flight}",
    )
    lags: list[float] = []

    async def dawdle(run: Run) -> None:
        setup = dataclasses.replace(run.parts.setup, grader=Dawdling(run.parts.setup.grader, 1))
        run.runner = GroupRunner(setup, rollouts=config.rollouts, record=run.ledger)
        seen = run.trackers.log

        def log(step: int, metrics: dict[str, float]) -> None:
            if "rollout/lag_max" in metrics:
                lags.append(metrics["rollout/lag_max"])
            seen(step, metrics)

        run.trackers.log = log  # pyright: ignore
        await loop.train(run)
        run.buffer.counts.check()
        assert run.buffer.counts.trained == 8 * config.rollouts.groups_per_step

    asyncio.run(with_run(config, tmp_path, dawdle))
    assert len(lags) == 8
    assert max(lags) <= math.ceil(max_lag)
    assert max(lags) >= 1, "the run never ran ahead, so the test shows nothing"


def test_a_resumed_synchronous_run_equals_the_unbroken_one_bit_for_bit(
    config_of: ConfigOf,
) -> None:
    straight = train(config_of("rollouts.max_lag=0", "steps=6"), "straight")
    broken = train(config_of("rollouts.max_lag=0", "steps=3", "schedule.shape=constant"), "broken")
    assert launch.resume(broken.path, ["steps=6"]) == 0
    assert_equal_weights(weights(straight), weights(broken))
    assert [row["step"] for row in rows(broken)] == [1, 2, 3, 4, 5, 6]
    unbroken = [untimed(row) for row in rows(straight)]
    assert [untimed(row) for row in rows(broken)] == unbroken
    assert launch.resume(broken.path, []) == launch.NOTHING_TO_DO


def trained_groups(folder: RunFolder) -> list[tuple[int, str]]:
    """(group, task id) in the order of training, from the dumped episodes."""
    seen: list[tuple[int, str]] = []
    for path in sorted(folder.episodes_dir.glob("step_*.jsonl")):
        for record in read(path):
            pair = (int(str(record["group"])), str(record["task_id"]))
            if pair not in seen:
                seen.append(pair)
    return seen


def test_an_asynchronous_resume_skips_no_task_and_trains_none_twice(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("rollouts.max_lag=2", "steps=8")
    straight = train(config, "straight")
    with monkeypatch.context() as patched:
        patched.setattr(Run, "should_stop", stop_after(3))
        broken = train(config, "broken")
    stopped = Summary.read(broken.path)
    assert (stopped.status, stopped.steps) == ("stopped", 3)
    assert launch.resume(broken.path, []) == 0
    groups = trained_groups(broken)
    assert len(groups) == len(set(groups)) == 32
    assert sorted(groups) == sorted(trained_groups(straight))
    assert Summary.read(broken.path).eval_first == Summary.read(straight.path).eval_first


def stop_after(step: int) -> Callable[[Run], bool]:
    def should_stop(run: Run) -> bool:
        run.is_stopping = run.trainer.step_index >= step
        return run.is_stopping

    return should_stop


def test_the_clock_ends_a_run_in_good_order(config_of: ConfigOf) -> None:
    folder = train(config_of("time_limit_s=0.000001", "steps=50"), "short")
    summary = Summary.read(folder.path)
    assert (summary.status, summary.reason) == ("stopped", "time_limit_s")
    assert summary.steps < 50


def test_a_run_that_lost_its_grader_fails_and_says_so(config_of: ConfigOf) -> None:
    function = f"{Path(__file__).parent / 'graders.py'}:broken"
    config = config_of(f"reward.function={function}", "output.name=fails", "steps=40")
    with pytest.raises(EvaluationError, match="the judge is away"):
        launch.train(config, recipe="finetune")
    summary = Summary.read(Path(config.output.dir) / "fails")
    assert summary.status == "failed"
    assert "the judge is away" in str(summary.reason)


def test_a_reward_that_cannot_be_imported_is_refused_at_the_start(config_of: ConfigOf) -> None:
    with pytest.raises(ConfigError, match=r"reward.function names the module 'nowhere"):
        config_of("reward.function=nowhere.to_be_found:f", "output.name=refused")


def cli(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "parity.cli.main", *words],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_stops_after_the_step_and_resume_goes_on(
    tiny_dir: Path, tasks_path: Path, tmp_path: Path
) -> None:
    words = (
        *("train", "finetune", f"model.path={tiny_dir}", f"tasks.path={tasks_path}"),
        *("tasks.chat=false", "sampling.max_new_tokens=4", "steps=100000", "output.name=stopped"),
        *("prompts.max_prompt_tokens=16", "display=plain"),
    )
    process = cli(*words, cwd=tmp_path)
    metrics = tmp_path / "runs" / "stopped" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (metrics.is_file() and "train/loss" in metrics.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step within 90 s"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == launch.INTERRUPTED, error
    summary = Summary.read(metrics.parent)
    assert summary.status == "stopped"
    more = cli("resume", "stopped", f"steps={summary.steps + 2}", cwd=tmp_path)
    output = more.communicate(timeout=120)
    assert more.returncode == 0, output
    assert Summary.read(metrics.parent).steps == summary.steps + 2


def test_the_user_recipe_needs_only_a_model_and_a_file(tiny_dir: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"{n} + 1 =", "answer": str(n + 1)}) for n in range(20)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    process = cli(
        *("train", "finetune", f"model.path={tiny_dir}", "tasks.path=mine.jsonl"), cwd=tmp_path
    )
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert len(list((tmp_path / "runs").iterdir())) == 1, output
