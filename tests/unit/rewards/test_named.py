"""A reward function that isn't there is refused by its key, without running its module."""

from pathlib import Path

import pytest

from parity.config.arithmetic import check
from parity.config.compose import load_train
from parity.errors import ConfigError

MODULE = """
raise SystemExit("nobody may run this")
from math import floor as rounded
def letters(answer): return 1.0
if True:
    words = late = letters
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("mine", MODULE), ("open", "from mine import *\n"), ("torn", "def (")):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('nor this')\n")
    (tmp_path / "pack" / "inner.py").write_text("def score(answer): ...\n")


def checked(function: str) -> None:
    check(load_train("quickstart", ["reward.name=python", f"reward.function={function}"]))


@pytest.mark.parametrize(
    "function",
    (
        "mine:letters mine.py:letters mine:late mine:rounded open:x pack.inner:score"
        " sys:intern math:floor json:dumps"
    ).split(),
)
def test_what_is_there_or_may_be_there_passes(function: str):
    checked(function)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("mine:leters", "reward.function is 'mine:leters', but there is no 'leters' in it; known:"),
        ("mine.py:x", "no 'x' in it; known: letters"),
        ("nowhere.py:x", "there is no file"),
        ("nowhere:x", "reward.function names the module 'nowhere'"),
        ("pack.outer:x", "there is no 'pack.outer' to import"),
        ("mine.inner:x", "there is no 'mine.inner' to import"),
        ("torn:x", "isn't Python"),
    ],
)
def test_what_is_not_there_is_refused_by_its_key(function: str, says: str):
    with pytest.raises(ConfigError, match=says):
        checked(function)


def test_a_part_of_a_sum_is_named_by_its_place():
    words = ["reward.name=sum", "reward.parts=[{name: exact}, {name: python, function: 'mine:x'}]"]
    with pytest.raises(ConfigError, match=r"reward\.parts\.1\.function is 'mine:x'"):
        check(load_train("quickstart", words))
