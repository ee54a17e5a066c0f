"""Run folders: unique names, refused duplicates, clear errors."""

from pathlib import Path

import pytest

from parity.errors import ConfigError
from parity.folder import RunFolder, RunInfo

INFO = RunInfo(recipe="quickstart", kind="train", started="2026-01-01", parity_version="0")


def test_a_made_up_name_is_made_unique(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path, name=None, info=INFO) for _ in range(3)]
    assert len({folder.name for folder in folders}) == 3
    assert all(folder.info() == INFO for folder in folders)


def test_a_chosen_name_that_exists_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, name="mine", info=INFO)
    with pytest.raises(ConfigError, match="parity resume mine"):
        RunFolder.create(tmp_path, name="mine", info=INFO)


def test_a_parent_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match=r"output\.dir"):
        RunFolder.create(blocked, name="x", info=INFO)


def test_a_recipe_given_as_a_path_names_the_folder_by_its_stem(tmp_path: Path) -> None:
    info = RunInfo(recipe="/a/b/mine.yaml", kind="train", started="", parity_version="0")
    assert RunFolder.create(tmp_path, name=None, info=info).name.startswith("mine-")


def test_another_folder_is_not_taken_for_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder"):
        RunFolder(tmp_path).info()
