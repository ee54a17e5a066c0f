"""The commands: each parses, calls one function, and its ending becomes an exit code."""

import errno
import json
import os
from pathlib import Path

import pytest
import yaml

from parity import __version__
from parity.cli.main import main
from parity.config import recipes
from parity.config.compose import load_train
from parity.errors import EngineError, ParityError


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was told on stderr, which is exactly one line."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_version_and_help(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"parity {__version__}\n"
    for words in ([], ["--help"], ["-h"]):
        assert main(words) == 0
        assert "parity train quickstart" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "sft", "eval", "resume", "runs", "show", "config"])
def test_every_command_teaches_with_examples(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Examples:\n    parity {command} " in text
    assert "\b" not in text


def test_train_passes_the_resolved_config_and_the_recipe(launched):
    assert main(["train", "quickstart", "steps=3", "eval.every_steps=1"]) == 0
    expected = load_train("quickstart", ["steps=3", "eval.every_steps=1"])
    assert launched.calls == [("train", (expected,), {"recipe": "quickstart"})]


def test_sft_passes_the_resolved_config_and_the_recipe(launched):
    assert main(["sft", "sft_quickstart", "steps=3000"]) == 0
    ((name, (config,), options),) = launched.calls
    assert (name, config.steps, options) == ("sft", 3000, {"recipe": "sft_quickstart"})


def test_resume_passes_the_folder_that_is_meant(launched, make_run):
    make_run("first")
    assert main(["resume", "fir", "steps=9"]) == 0
    assert launched.calls == [("resume", (Path("runs/first"), ["steps=9"]), {})]


def test_eval_passes_its_options(launched):
    words = ["eval", "./m", "--recipe", "quickstart", "--samples", "8", "--tasks", "5"]
    assert main([*words, "--temperature", "0.5", "-k", "4,1,4", "seed=3"]) == 0
    options = {"recipe": "quickstart", "overrides": ["seed=3"], "samples": 8, "tasks": 5}
    assert launched.calls == [("evaluate", ("./m",), {**options, "temperature": 0.5, "k": (1, 4)})]


def test_eval_finds_runs_and_leaves_models_alone(launched, make_run, elsewhere: Path):
    make_run("first")
    (elsewhere / "fi").mkdir()
    for word in ("latest", "first", "fir", "fi", "org/first", "other"):
        assert main(["eval", word]) == 0
    meant = [arguments[0] for _, arguments, _ in launched.calls]
    assert meant == ["runs/first"] * 3 + ["fi", "org/first", "other"]


@pytest.mark.parametrize("k", ["0", "a", "1,,2", ""])
def test_eval_refuses_a_k_that_is_none(launched, k: str, capsys):
    assert main(["eval", "m", "--k", k]) == 2
    assert "numbers >= 1" in said(capsys)


def test_eval_refuses_more_k_than_samples(launched, capsys):
    assert main(["eval", "m", "--k", "8", "--samples", "4"]) == 2
    assert "set --samples 8" in said(capsys)


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_the_code_of_a_run_is_the_code_of_the_command(launched, code: int, capsys):
    launched.ending = code
    assert main(["train", "quickstart"]) == code
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [EngineError("the engine died."), ParityError("it broke.")])
def test_a_failed_run_is_one_sentence_and_code_1(launched, error: ParityError, capsys):
    launched.ending = error
    assert main(["train", "quickstart"]) == 1
    assert said(capsys) == f"parity: {error}"


def test_the_traceback_of_a_failure_is_there_on_demand(
    launched, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setenv("PARITY_TRACEBACK", "1")
    launched.ending = EngineError("the engine died.")
    assert main(["train", "quickstart"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_is_one_line_and_code_130(launched, capsys):
    launched.ending = KeyboardInterrupt()
    assert main(["train", "quickstart"]) == 130
    assert said(capsys) == "parity: interrupted."


def test_a_cancelled_event_loop_is_an_interrupt_too(launched, capsys):
    import asyncio

    launched.ending = asyncio.CancelledError()
    assert main(["train", "quickstart"]) == 130
    assert said(capsys) == "parity: interrupted."


def test_a_bug_keeps_its_traceback_in_the_run_folder(launched, make_run, capsys):
    folder = make_run("first")
    launched.ending = ZeroDivisionError("oh")
    assert main(["train", "quickstart"]) == 70
    message = said(capsys)
    assert "ZeroDivisionError: oh" in message
    assert "bug of Parity" in message
    assert "ZeroDivisionError: oh" in (folder / "crash.txt").read_text()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EROFS])
def test_a_disk_that_refuses_is_one_sentence_and_no_bug(launched, capsys, number):
    launched.ending = OSError(number, os.strerror(number), "runs/a/summary.json")
    assert main(["train", "quickstart"]) == 1
    message = said(capsys)
    assert message.startswith("parity: runs/a/summary.json can't be written (")
    assert "parity resume" in message
    launched.ending = OSError(number, os.strerror(number))
    assert main(["train", "quickstart"]) == 1
    assert "something in" in said(capsys)


def test_a_bug_before_there_is_a_run_folder_keeps_its_traceback_elsewhere(launched, capsys):
    launched.ending = ZeroDivisionError("oh")
    assert main(["eval", "m"]) == 70
    place = Path(said(capsys).rpartition("report it with ")[2].removesuffix("."))
    assert "ZeroDivisionError: oh" in place.read_text()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian"], ["'trian'", "Did you mean 'train'?"]),
        (["train"], ["RECIPE"]),
        (["train", "quikstart"], ["quikstart", "Did you mean 'quickstart'?"]),
        (["train", "quickstart", "stepz=1"], ["stepz=1", "Did you mean steps?"]),
        (["train", "sft_quickstart"], ["`parity sft sft_quickstart`"]),
        (["train", "finetune"], ["model.path is missing"]),
        (["sft", "quickstart"], ["`parity train quickstart`"]),
        (["resume", "nothing"], ["there are no runs"]),
        (["show", "--metrik", "x"], ["--metrik", "--metric"]),
        (["config", "quickstart", "rollouts.max_lag=nan"], ["rollouts.max_lag is nan"]),
        (["train", "quickstart", "OMP=1"], ["OMP=1"]),
    ],
)
def test_an_unusable_command_line_is_one_sentence_and_code_2(
    launched, words: list[str], parts: list[str], capsys
):
    assert main(words) == 2
    message = said(capsys)
    for part in parts:
        assert part in message
    assert launched.calls == []


def test_config_prints_a_recipe_that_loads_again(elsewhere: Path, capsys):
    assert main(["config", "quickstart", "steps=40"]) == 0
    text = capsys.readouterr().out
    (elsewhere / "mine.yaml").write_text(text)
    assert load_train("mine.yaml") == load_train("quickstart", ["steps=40"])
    assert recipes.read("mine.yaml").body["kind"] == "train"
    assert "# episodes per step" in text


@pytest.mark.parametrize("recipe", ["quickstart", "sft_quickstart"])
def test_config_prints_json(recipe: str, capsys):
    assert main(["config", recipe, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"config", "derived"}
    assert found["derived"]["threads"]["trainer"] >= 1


def test_config_shows_what_there_is_before_it_refuses(capsys):
    assert main(["config", "finetune"]) == 2
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["model"]["path"] is None
    assert "model.path is missing" in err
