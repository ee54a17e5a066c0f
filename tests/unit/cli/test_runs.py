"""`parity runs` and `parity show` tell what is known, and `-` for what isn't."""

import json
from pathlib import Path

import pytest

from parity.cli.main import main
from parity.cli.runs import read_run
from parity.observe.summary import Summary
from parity.observe.trackers.jsonl import JsonlTracker


@pytest.fixture
def logged(make_run):
    """Makes a run folder that has metrics."""

    def make(name: str, accuracies: list[float | None]) -> Path:
        folder = make_run(name)
        tracker = JsonlTracker(folder, "parity", name)
        tracker.start({})
        for step, accuracy in enumerate(accuracies):
            known = {} if accuracy is None else {"eval/accuracy": accuracy}
            tracker.log(step, {"rollout/raw_reward": step / 10, **known})
        tracker.finish()
        return folder

    return make


def test_a_finished_run_is_told_by_its_summary(logged, capsys):
    folder = logged("one", [0.25, None, 0.5])
    summary = Summary(
        status="finished", platform="cpu", steps=2, train_seconds=75, eval_first=0.25, eval_last=0.5
    )
    summary.write(folder)
    assert main(["runs"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["run", "recipe", "status", "steps", "accuracy", "time"]
    assert line.split() == "one quickstart finished 2 0.250 -> 0.500 1 min 15 s".split()


def test_a_run_without_a_summary_is_open_and_never_finished(logged):
    found = read_run(logged("one", [0.25, None, 0.5, None]))
    assert (found.status, found.steps) == ("open", 3)
    assert (found.first_accuracy, found.last_accuracy, found.seconds) == (0.25, 0.5, None)


def test_a_run_that_has_only_begun_is_all_unknown(logged, capsys):
    logged("one", [])
    assert main(["runs"]) == 0
    assert (
        capsys.readouterr().out.splitlines()[1].split() == "one quickstart open - - -> - -".split()
    )


def test_a_failed_run_and_a_broken_summary_are_told_as_such(logged, capsys):
    failed = logged("failed", [0.25])
    Summary(status="failed", reason="out of memory", platform="cpu", steps=0).write(failed)
    (logged("broken", []) / "summary.json").write_text("{")
    assert main(["runs", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["name"]: line["status"] for line in lines} == {
        "failed": "failed",
        "broken": "unreadable",
    }


def test_no_runs_says_how_to_make_one(capsys):
    assert main(["runs"]) == 0
    assert "parity train quickstart" in capsys.readouterr().out


def test_show_draws_the_curve_and_writes_the_picture(logged, capsys):
    folder = logged("one", [0.25, None, 0.5])
    assert main(["show", "latest"]) == 0
    text = capsys.readouterr().out
    assert "eval/accuracy" in text
    assert "rollout/raw_reward" in text
    assert str(Path("runs", "one", "curve.png")) in text
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_show_draws_what_is_asked_for(logged, elsewhere: Path, capsys):
    logged("one", [0.25, 0.5])
    assert main(["show", "one", "-m", "eval/accuracy", "--png", "mine.png"]) == 0
    assert "raw_reward" not in capsys.readouterr().out
    assert (elsewhere / "mine.png").is_file()


def test_show_refuses_a_metric_that_the_run_lacks(logged, capsys):
    logged("one", [0.25])
    assert main(["show", "one", "--metric", "eval/acuracy"]) == 2
    assert "Did you mean 'eval/accuracy'?" in capsys.readouterr().err
    logged("two", [])
    assert main(["show", "two"]) == 2
