"""Runs are found by path, name, unique beginning, or as the newest."""

import os
from pathlib import Path

import pytest

from parity.cli.locate import find_run, list_runs, runs_dir
from parity.errors import ConfigError


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    for age, name in enumerate(("quickstart-1", "quickstart-2", "mine")):
        folder = tmp_path / "all" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (1000 - age, 1000 - age))
    (tmp_path / "all" / "no-run").mkdir()
    return tmp_path / "all"


def test_runs_are_listed_newest_first_and_other_folders_are_not(parent: Path):
    assert [run.name for run in list_runs(parent)] == ["quickstart-1", "quickstart-2", "mine"]
    assert list_runs(parent / "gone") == []


@pytest.mark.parametrize(
    ("word", "name"),
    [("latest", "quickstart-1"), ("mine", "mine"), ("mi", "mine"), ("quickstart-2",) * 2],
)
def test_a_word_means_one_run(parent: Path, word: str, name: str):
    assert find_run(word, parent).path == parent / name


def test_a_path_means_itself(parent: Path):
    assert find_run(str(parent / "mine"), parent / "gone").path == parent / "mine"


def test_a_full_name_wins_over_longer_ones(parent: Path):
    longer = parent / "mine-2"
    longer.mkdir()
    (longer / "run.json").write_text("{}")
    assert find_run("mine", parent).name == "mine"


@pytest.mark.parametrize(
    ("word", "part"),
    [("quick", "beginning of 2 runs"), ("mime", "Did you mean 'mine'?"), ("no-run", "there is no")],
)
def test_a_word_that_means_no_run_or_several_is_refused(parent: Path, word: str, part: str):
    with pytest.raises(ConfigError) as caught:
        find_run(word, parent)
    assert part in str(caught.value)


def test_no_runs_at_all_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(ConfigError, match="parity train quickstart"):
        find_run("latest", tmp_path)


def test_the_folder_of_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PARITY_RUNS_DIR", raising=False)
    assert runs_dir(None) == Path("runs")
    monkeypatch.setenv("PARITY_RUNS_DIR", "/data")
    assert runs_dir(None) == Path("/data")
    assert runs_dir("here") == Path("here")
