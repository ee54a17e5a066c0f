"""Recipes are found by name in the package or by path, never by accident."""

from pathlib import Path

import pytest

from parity.config import recipes
from parity.errors import ConfigError


def test_packaged_recipes_are_listed_and_described():
    assert {"quickstart", "quickstart_sync", "finetune", "sft_quickstart"} <= set(recipes.names())
    for name in recipes.names():
        assert recipes.read(name).description.endswith(".")


def test_a_name_never_means_a_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("quickstart.yaml").write_text("steps: 1\n")
    assert recipes.read("quickstart").path is None
    assert recipes.read("quickstart.yaml").path == tmp_path / "quickstart.yaml"


def test_numbers_in_yaml_are_numbers(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1e-6\nb: 1.5\nc: 3\nd: -2E3\ne: 1e6x\n")
    assert recipes.read_mapping(path) == {"a": 1e-6, "b": 1.5, "c": 3, "d": -2e3, "e": "1e6x"}


def test_an_empty_file_is_an_empty_recipe(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("")
    assert recipes.read_mapping(path) == {}


def test_python_objects_in_yaml_are_refused(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("a: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ConfigError, match=r"a\.yaml:1 isn't valid YAML"):
        recipes.read_mapping(path)
