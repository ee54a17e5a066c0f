"""The examples of docs/adding.md work as they are written."""

import asyncio
import importlib
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from third_party import installed

from parity.cli.main import main
from parity.config.compose import load_train
from parity.config.schema import TrainConfig
from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer
from parity.observe.tracking import Trackers
from parity.parts import open_source
from parity.rewards.config import SumRewardConfig
from parity.rewards.grader import GraderPool
from parity.tasks.stream import TaskStream
from parity.types import Answer, RewardResult, Sampling, Scored, Unscored

PAGE = (Path(__file__).parents[2] / "docs/adding.md").read_text(encoding="utf-8")


def examples() -> dict[str, str]:
    """The code blocks that say in their first line which file they are."""
    blocks = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == PAGE.count("\n```") // 2, "a block without a file name"
    return dict(blocks)


@pytest.fixture(autouse=True)
def my_parts(tmp_path: Path):
    """The page's package, installed as its pyproject.toml says."""
    files = examples()
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    modules = {path: text for path, text in files.items() if path.startswith("my_parts/")}
    assert len(modules) == 4
    with installed(tmp_path, modules, project["entry-points"], name=project["name"]):
        yield


def config_of(*words: str) -> TrainConfig:
    return load_train("quickstart", ["tasks.name=additions", *words])


def graded(config: TrainConfig, answers: list[Answer]) -> list[RewardResult]:
    async def grade() -> list[RewardResult]:
        async with GraderPool(config.reward, config.grader) as grader:
            return await grader.grade(answers)

    return asyncio.run(grade())


def answer(response: str, expected: str | None) -> Answer:
    return Answer(
        task_id="t",
        question="4+3=",
        response=response,
        expected=expected,
        columns={},
        is_truncated=False,
    )


def test_parity_config_shows_the_sections(capsys: pytest.CaptureFixture[str]):
    words = ["tasks.name=additions", "tasks.largest=5", "reward.name=closeness"]
    words += ["loss.name=reinforce", "trackers.names=[csv]"]
    assert main(["config", "quickstart", *words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["config"]
    assert shown["tasks"] == {"name": "additions", "largest": 5, "size": 10000}
    assert shown["reward"] == {"name": "closeness", "tolerance": 10.0}
    loss = {"name": "reinforce", "aggregation": "token_mean", "old_logprobs": "trainer"}
    assert shown["loss"] == loss
    assert main(["config", "quickstart", *words, "tasks.larges=5"]) == 2
    assert "Did you mean tasks.largest?" in capsys.readouterr().err
    assert main(["config", "quickstart", *words, "tasks.largest=0"]) == 2
    assert "tasks.largest is 0; it must be >= 1" in capsys.readouterr().err


def test_the_task_source_streams():
    config = config_of("tasks.size=20")
    renderer = Renderer(character_tokenizer(max_length=64))
    source, again = (open_source(config.tasks, 1, renderer) for _ in range(2))
    stream = TaskStream(source, renderer=renderer, prompts=config.prompts, seed=0)
    drawn = [next(stream) for _ in range(20)]
    assert len({task.task_id for task in drawn}) == 20
    for task in drawn:
        a, b = re.fullmatch(r"(\d)\+(\d)=", task.question).groups()  # pyright: ignore
        assert task.answer == str(int(a) + int(b))
    assert [source.task(i) for i in range(20)] == [again.task(i) for i in range(20)]


def test_the_reward_grades_in_its_process():
    config = config_of("reward.name=closeness", "reward.tolerance=4")
    answers = [answer("7", "7"), answer("8", "7"), answer("x", "7"), answer("nan", "7")]
    results = graded(config, [*answers, answer("7", None)])
    assert results[:4] == [Scored(1.0), Scored(0.75), Scored(0.0), Scored(0.0)]
    assert isinstance(results[4], Unscored)


def test_the_reward_is_a_part_of_a_sum_as_the_page_writes_it():
    (word,) = re.findall(r"`'(reward\.parts=[^`]*)'`", PAGE)
    config = config_of("reward.name=sum", word)
    assert isinstance(config.reward, SumRewardConfig)
    parts = {"closeness": 1.0, "exact": 1.0}
    assert graded(config, [answer("7", "7")]) == [Scored(1.5, parts)]


def test_the_loss_scores_tokens():
    from parity.algorithms.losses.loss import load_loss

    config = config_of("loss.name=reinforce")
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    terms = load_loss(config.loss.name)(
        logprobs,
        old_logprobs=logprobs.detach(),
        advantages=torch.tensor([1.0, -0.5]),
        config=config.loss,
    )
    terms.loss.sum().backward()
    assert terms.loss.tolist() == [0.0, 0.0]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-1.0, 0.5]
    assert terms.ratio.tolist() == [1.0, 1.0]


def test_the_tracker_writes(tmp_path: Path):
    trackers = Trackers.of(["csv"], run_dir=tmp_path, project="p", run_name="r")
    trackers.start({})
    trackers.log(1, {"train/loss": 0.5, "train/entropy": None})
    trackers.finish()
    rows = (tmp_path / "metrics.csv").read_text().split()
    assert rows == ["1,train/loss,0.5"]


def test_the_engine_keeps_the_form_of_the_contract(tmp_path: Path, monkeypatch):
    (tmp_path / "echo.py").write_text(examples()["src/parity/engines/echo.py"])
    monkeypatch.syspath_prepend(tmp_path)
    engine = importlib.import_module("echo").EchoEngine(max_length=64)

    async def use() -> None:
        completion = await engine.generate((5, 6, 7), Sampling(max_new_tokens=2))
        assert (completion.tokens, completion.versions) == ((5, 6), (0, 0))
        await engine.load(iter(()))
        await engine.commit_load(3)
        assert engine.version == 3
        await engine.close()

    asyncio.run(use())
    del sys.modules["echo"]
