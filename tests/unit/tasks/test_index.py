import sys
from pathlib import Path

import pytest

from parity.errors import ConfigError, UnsupportedError
from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer
from parity.tasks import TASKS
from parity.tasks.config import PromptsConfig
from parity.tasks.source import TaskSource
from parity.tasks.stream import TaskStream

MODULE = """
from parity.tasks.source import TaskSource
from parity.types import Task


class CountingSource(TaskSource):
    size = 3

    def __init__(self, config, seed):
        self.seed = seed

    def task(self, index):
        return Task(task_id=f"counting/{index}", prompt=f"What follows {index}?")
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package of somebody else, with an entry point `parity.tasks`."""
    (tmp_path / "counting_tasks.py").write_text(MODULE)
    info = tmp_path / "counting_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[parity.tasks]\ncounting = counting_tasks:CountingSource\nlost = no_such_module:Source\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("counting_tasks", None)


def test_every_source_that_ships_can_be_loaded() -> None:
    for name in ("reasoning_gym", "jsonl", "parquet"):
        found = TASKS.load(name)
        assert isinstance(found, type)
        assert issubclass(found, TaskSource)


@pytest.mark.usefixtures("third_party")
def test_a_source_of_another_package_is_found_by_its_entry_point() -> None:
    assert "counting" in TASKS.names()
    found = TASKS.load("counting")
    assert isinstance(found, type)
    renderer = Renderer(character_tokenizer(max_length=64))
    stream = TaskStream(found({}, seed=1), renderer=renderer, prompts=PromptsConfig(), seed=0)
    drawn = [next(stream) for _ in range(3)]
    assert {task.task_id for task in drawn} == {"counting/0", "counting/1", "counting/2"}
    assert all(task.tokens for task in drawn)


@pytest.mark.usefixtures("third_party")
def test_a_source_that_can_not_be_imported_says_what_is_missing() -> None:
    with pytest.raises(UnsupportedError, match=r"tasks\.lost needs no_such_module"):
        TASKS.load("lost")
    with pytest.raises(ConfigError, match="Did you mean 'counting'"):
        TASKS.load("countng")
