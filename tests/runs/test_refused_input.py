"""What can't be used is refused once, in a sentence, with exit code 2 and without a run folder."""

import json
from pathlib import Path

import pytest
from runs.mortal import words_of

from parity.cli.main import main


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"answer": "c"}\n' * 8)
    (tmp_path / "torn.jsonl").write_text('{"prompt": "ab", "answ\n' * 8)
    (tmp_path / "reward.py").write_text("def other(answer): return 1.0\nraise ValueError('no key')")
    (tmp_path / "late.py").write_text("score = None\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tasks.path=bad.jsonl"], "tasks.prompt_column is 'prompt', but bad.jsonl:1 has"),
        (["tasks.path=torn.jsonl"], "torn.jsonl:"),
        (["reward.name=python", "reward.function=reward.py:missing"], "reward.function is 'reward"),
        (["reward.name=python", "reward.function=reward.py:other"], "ValueError: no key"),
        (["reward.name=python", "reward.function=late.py:score"], "reward.function is 'late.py"),
        (["model.path=./empty"], "model"),
    ],
)
def test_bad_input_is_told_once_and_leaves_no_run_folder(
    tiny_dir: Path, tasks_path: Path, elsewhere: Path, capfd, words, says
) -> None:
    (elsewhere / "empty").mkdir()
    shown = ["display=plain", *words]
    assert main([*words_of(tiny_dir, tasks_path, "run"), *shown]) == 2
    out, err = capfd.readouterr()
    assert says in err
    (sentence,) = [line for line in err.splitlines() if line.startswith("parity: ")]
    assert (out + err).count(sentence.removeprefix("parity: ")) == 1
    assert not (elsewhere / "runs" / "run").exists()


def test_a_run_that_fails_while_it_trains_keeps_its_folder(
    tiny_dir: Path, tasks_path: Path, elsewhere: Path, capfd
) -> None:
    words = ["reward.name=python", "reward.function=broken.py:score", "display=plain"]
    (elsewhere / "broken.py").write_text("def score(answer):\n    raise ValueError('judge away')\n")
    assert main([*words_of(tiny_dir, tasks_path, "run"), *words]) == 1
    _, err = capfd.readouterr()
    assert err.count("judge away") == 1
    summary = json.loads((elsewhere / "runs" / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
