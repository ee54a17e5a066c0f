"""Task sources are built from their section, whoever brings them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from third_party import installed

from parity.config.schema import TasksConfig
from parity.errors import ConfigError
from parity.models.rendering import Renderer
from parity.models.tiny import character_tokenizer
from parity.parts import open_source
from parity.tasks.config import FileConfig
from parity.tasks.source import TaskSource
from parity.types import Message, Task

PLAIN = Renderer(character_tokenizer(max_length=64))
CHAT = Renderer(
    character_tokenizer(max_length=64),
    chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
)


@dataclass(frozen=True, kw_only=True)
class OpenConfig:
    name: Literal["open"] = "open"
    chat: bool | None = None


@dataclass(frozen=True)
class MuteConfig:
    name: Literal["mute"] = "mute"


class Source(TaskSource):
    size = 4

    def __init__(self, config: OpenConfig | MuteConfig, *, seed: int) -> None:
        self.config, self.seed = config, seed

    def task(self, index: int) -> Task:
        return Task(task_id=str(index), messages=(Message("user", "x"),))


@pytest.fixture
def registered(tmp_path: Path):
    source = f"{__name__}:Source"
    points = {"open": source, "mute": source, "wrong": f"{__name__}:OpenConfig"}
    with installed(tmp_path, {}, {"parity.tasks": points}):
        yield


def opened(config: object, renderer: Renderer = PLAIN) -> TaskSource:
    assert isinstance(config, TasksConfig | OpenConfig | MuteConfig)
    return open_source(config, 3, renderer)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("renderer", "chat"), [(PLAIN, False), (CHAT, True)])
def test_a_source_that_asks_is_told_whether_there_is_a_chat_template(renderer, chat):
    source = opened(OpenConfig(), renderer)
    assert vars(source) == {"config": OpenConfig(chat=chat), "seed": 3}
    assert vars(opened(OpenConfig(chat=True), PLAIN))["config"].chat is True


@pytest.mark.usefixtures("registered")
def test_a_source_without_a_chat_key_gets_its_config_as_it_is():
    config = MuteConfig()
    assert vars(opened(config, CHAT))["config"] is config


@pytest.mark.usefixtures("registered")
def test_a_class_that_is_no_source_is_refused():
    @dataclass(frozen=True)
    class Wrong(OpenConfig):
        name: Literal["wrong"] = "wrong"  # pyright: ignore

    with pytest.raises(ConfigError, match=r"tasks\.name=wrong leads to .*; it must be a subclass"):
        opened(Wrong())


def test_a_file_of_texts_is_sent_as_chat_where_there_is_a_template(tmp_path: Path):
    (tmp_path / "t.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    config = FileConfig(path=str(tmp_path / "t.jsonl"))
    assert opened(config, PLAIN).task(0).prompt == "a"
    assert opened(config, CHAT).task(0).messages == (Message("user", "a"),)
