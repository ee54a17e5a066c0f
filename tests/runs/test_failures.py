"""What breaks inside a run: retried, counted against a budget, and told; never a reward of 0."""

import asyncio
import dataclasses
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from runs.mortal import assert_clean

from parity import launch, measure
from parity.config.arithmetic import check
from parity.config.compose import load_sft
from parity.config.schema import SftConfig, TrainConfig
from parity.engines.embedded.engine import EmbeddedEngine
from parity.errors import (
    DataError,
    DeadlineError,
    EngineError,
    EngineLostError,
    EvaluationError,
    TrainingError,
)
from parity.observe.summary import Summary
from parity.observe.trackers.jsonl import read_rows
from parity.rollouts import retries
from parity.sft import command
from parity.supervise.page import FILE_NAME
from parity.supervise.watchdog import Watchdog
from parity.training.checkpoint import CheckpointStore
from parity.training.trainer import Trainer

ConfigOf = Callable[..., TrainConfig]
GRADERS = Path(__file__).parent / "graders.py"


def named(config: TrainConfig, name: str) -> tuple[TrainConfig, Path]:
    output = dataclasses.replace(config.output, name=name)
    return dataclasses.replace(config, output=output), Path(config.output.dir) / name


class Shaky:
    """Lets some calls of the engine fail, by a seed of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float, error: Exception) -> None:
        self._noise = random.Random(0)
        self._share, self._error = share, error
        self.num_raised = 0
        generate = EmbeddedEngine.generate

        async def shaky(engine, tokens, sampling, *, request_id=None):
            if self._noise.random() < self._share:
                self.num_raised += 1
                await asyncio.sleep(0)
                raise self._error
            return await generate(engine, tokens, sampling, request_id=request_id)

        monkeypatch.setattr(EmbeddedEngine, "generate", shaky)
        monkeypatch.setattr(retries, "FIRST_PAUSE_S", 0.01)


def test_an_engine_that_fails_at_random_costs_retries_and_the_run_finishes(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shaky = Shaky(monkeypatch, 0.2, EngineError("no memory just now"))
    config, folder = named(config_of("rollouts.max_retries=8"), "shaky")
    assert launch.train(config, recipe="finetune") == 0
    rows = [row for row in read_rows(folder / "metrics.jsonl") if "rollout/retries" in row]
    assert len(rows) == 4
    assert shaky.num_raised >= 5
    assert 0 < sum(row["rollout/retries"] or 0 for row in rows) <= shaky.num_raised
    assert all(row["rollout/engine_failures"] == 0 for row in rows)
    assert all(row["rollout/scored_share"] == 1.0 for row in rows)
    assert_clean(folder)


def test_an_engine_that_fails_for_good_spends_the_budget_with_its_reason(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    Shaky(monkeypatch, 0.9, EngineError("no memory"))
    more = ("steps=40", "rollouts.max_retries=1", "rollouts.max_failed_share=0.3")
    config, folder = named(config_of(*more), "lasting")
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, num_tasks=1))
    monkeypatch.setattr("parity.loop.evaluate", _no_evaluation)
    with pytest.raises(TrainingError, match=r"episodes failed \(last: the engine: no memory\)"):
        launch.train(config, recipe="finetune")
    assert Summary.read(folder).status == "failed"
    assert_clean(folder)


async def _no_evaluation(run: object) -> None:
    """Leave the evaluation out."""


def test_a_lost_engine_ends_the_run_at_once_with_its_reason(
    config_of: ConfigOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shaky = Shaky(monkeypatch, 1.0, EngineLostError("the engine was closed; build a new one."))
    config, folder = named(config_of("rollouts.max_retries=100"), "lost")
    with pytest.raises(EngineLostError, match="was closed"):
        launch.train(config, recipe="finetune")
    assert shaky.num_raised <= config.eval.num_tasks
    assert "was closed" in (Summary.read(folder).reason or "")


PICKY = (
    "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('odd') }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)


@pytest.fixture
def late_record(tmp_path: Path) -> tuple[Path, list[str]]:
    """400 records, of which the sixth fails, only when it is drawn; and the words to draw it."""
    path = tmp_path / "late.jsonl"
    words = ["bad" if n == 5 else "cab" for n in range(400)]
    path.write_text("".join(json.dumps({"prompt": w, "answer": "c"}) + "\n" for w in words))
    return path, [
        f"tasks.path={path}",
        "tasks.chat=true",
        f"model.chat_template={json.dumps(PICKY)}",
        "prompts.shuffle=false",
        "rollouts.max_lag=0",
        "checkpoint.every_steps=1",
    ]


def test_a_bad_record_met_late_stops_with_its_place_and_the_run_resumes_once_it_is_mended(
    config_of: ConfigOf, late_record: tuple[Path, list[str]]
) -> None:
    path, words = late_record
    config, folder = named(config_of(*words), "late")
    with pytest.raises(DataError) as caught:
        launch.train(config, recipe="finetune")
    assert str(caught.value).startswith(f"{path}:6: ")
    assert Summary.read(folder).reason == str(caught.value)
    path.write_text(path.read_text().replace('"bad"', '"dab"'))
    assert launch.resume(folder, []) == 0
    assert Summary.read(folder).steps == 4
    assert_clean(folder)


def test_a_bad_record_met_late_is_passed_over_under_skip(
    config_of: ConfigOf, late_record: tuple[Path, list[str]]
) -> None:
    path, words = late_record
    config, folder = named(config_of(*words, "tasks.on_bad=skip", "tasks.max_bad=1"), "skips")
    assert launch.train(config, recipe="finetune") == 0
    assert (folder / "log.txt").read_text().count(f"{path}:6") == 1
    assert progress_in(folder)["skipped"] == [5], "a resume goes on counting from here"
    assert_clean(folder)


def progress_in(folder: Path) -> dict:
    """What the newest checkpoint says of the run's progress."""
    checkpoint = CheckpointStore(folder / "checkpoints", 2).newest()
    assert checkpoint is not None
    progress = checkpoint.state["progress"]
    assert isinstance(progress, dict)
    return progress


def failures_in(folder: Path) -> list[list[int]]:
    """The failure budget of the newest checkpoint: group, failed, ended."""
    return progress_in(folder)["failures"]


def test_the_failure_budget_goes_on_over_a_resume(config_of: ConfigOf) -> None:
    words = (
        "steps=4",
        "rollouts.max_lag=0",
        f"reward.function={GRADERS}:fails_on_some",
        "rollouts.max_failed_share=0.9",
    )
    config, folder = named(config_of(*words), "budget")
    assert launch.train(config, recipe="finetune") == 0
    before = failures_in(folder)
    assert sum(ended for _, _, ended in before) >= 4 * 16
    assert any(failed for _, failed, _ in before)
    assert launch.resume(folder, ["steps=6"]) == 0
    after = failures_in(folder)
    assert after[: len(before)] == before
    assert len(after) >= len(before) + 2 * 4
    assert len({index for index, _, _ in after}) == len(after)


def test_an_evaluation_without_a_result_fails_the_run_and_is_no_zero(config_of: ConfigOf) -> None:
    config, folder = named(config_of(f"reward.function={GRADERS}:broken"), "judged")
    with pytest.raises(EvaluationError, match=r"broke at 4 of 4 answers.*the judge is away"):
        launch.train(config, recipe="finetune")
    summary = Summary.read(folder)
    assert (summary.status, summary.eval_first) == ("failed", None)


def sft_config(tasks_path: Path, tmp_path: Path, *words: str) -> SftConfig:
    config = load_sft(
        "sft_quickstart",
        [
            "tiny_model.hidden_size=48",
            "tiny_model.num_layers=2",
            "tiny_model.max_length=64",
            "tasks.name=jsonl",
            f"tasks.path={tasks_path}",
            "answers=[{template: '{answer}'}]",
            "reward.name=exact",
            "prompts.max_prompt_tokens=16",
            "sampling.max_new_tokens=4",
            "steps=2",
            "batch_size=8",
            "schedule.warmup_steps=0",
            "eval.num_tasks=4",
            f"output.dir={tmp_path}",
            "output.name=sft",
            "trackers.names=[jsonl]",
            "display=none",
            *words,
        ],
    )
    check(config)
    return config


def test_a_supervised_run_whose_trainer_hangs_ends_with_a_page(
    tasks_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    codes: list[int] = []

    def stuck(*_: object) -> None:
        assert let_go.wait(60), "nobody ended the process"
        raise RuntimeError("the stuck part was let go")

    def leave(code: int) -> None:
        codes.append(code)
        let_go.set()

    def watchdog(*arguments, **options) -> Watchdog:
        return Watchdog(*arguments, **options, leave=leave)

    monkeypatch.setattr(command, "Watchdog", watchdog)
    monkeypatch.setattr(Trainer, "step", stuck)
    limits = ("supervise.step_timeout_s=1", "supervise.stop_timeout_s=1")
    with pytest.raises(DeadlineError, match="the trainer's step 1"):
        command.sft(sft_config(tasks_path, tmp_path, *limits), recipe="sft_quickstart")
    folder = tmp_path / "sft"
    assert "driver waits for the trainer's step 1" in (folder / FILE_NAME).read_text()
    assert Summary.read(folder).status == "failed"
    assert codes == [1]


def test_a_supervised_run_passes_over_a_task_without_an_answer_as_its_policy_says(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [{"prompt": "ab:", "answer": None if n == 1 else "a"} for n in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("prompts.shuffle=false", "output.name=null")
    with pytest.raises(DataError, match=r"tasks.jsonl:2: .*no answer to learn from"):
        command.sft(sft_config(path, tmp_path, *words), recipe="sft_quickstart")
    skips = (*words, "tasks.on_bad=skip", "tasks.max_bad=1")
    assert command.sft(sft_config(path, tmp_path, *skips), recipe="sft_quickstart") == 0


def evaluated(tiny_dir: Path, tasks_path: Path, tmp_path: Path, *words: str) -> Path:
    """`parity eval` of a tiny model; its folder."""
    try:
        measure.evaluate(
            str(tiny_dir),
            recipe="finetune",
            overrides=[
                f"tasks.path={tasks_path}",
                "tasks.chat=false",
                "sampling.max_new_tokens=4",
                "prompts.max_prompt_tokens=16",
                "reward.name=python",
                f"output.dir={tmp_path}",
                "output.name=eval",
                "display=none",
                *words,
            ],
            samples=None,
            tasks=4,
            temperature=None,
            k=(),
        )
    finally:
        assert (tmp_path / "eval" / "summary.json").is_file()
    return tmp_path / "eval"


def test_an_evaluation_command_that_hangs_ends_with_a_page(
    tiny_dir: Path, tasks_path: Path, tmp_path: Path
) -> None:
    words = (
        f"reward.function={GRADERS}:hangs_always",
        "grader.timeout_s=1000",
        "supervise.stall_timeout_s=2",
    )
    with pytest.raises(DeadlineError, match=r"the evaluation.*supervise.stall_timeout_s"):
        evaluated(tiny_dir, tasks_path, tmp_path, *words)
    folder = tmp_path / "eval"
    assert "parity.rewards.worker" in (folder / FILE_NAME).read_text()
    assert Summary.read(folder).status == "failed"


def test_an_evaluation_command_says_what_could_not_be_graded(
    tiny_dir: Path, tasks_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(EvaluationError, match="broke at 4 of 4 answers"):
        evaluated(tiny_dir, tasks_path, tmp_path, f"reward.function={GRADERS}:broken")
    assert Summary.read(tmp_path / "eval").status == "failed"
    evaluated(tiny_dir, tasks_path, tmp_path / "again", f"reward.function={GRADERS}:letters")
    shown = capsys.readouterr().out
    assert "failed_share" in shown
    assert "0.000 to " in shown
