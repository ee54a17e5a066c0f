"""Sections of other packages: as closed, strict and repeatable as those that ship."""

import dataclasses
import sys
from pathlib import Path
from typing import get_args

import pytest
from third_party import installed

from parity import registry
from parity.cli.main import main
from parity.config import keys
from parity.config.arithmetic import check
from parity.config.compose import load, load_sft, load_train
from parity.config.resolve import resolve, to_plain
from parity.config.saved import load_saved, save
from parity.config.schema import TrainConfig
from parity.errors import ConfigError

TASKS = """
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from parity import checks
from parity.types import Json


@dataclass(frozen=True, kw_only=True)
class Shape:
    letters: int = 3
    alphabet: str = "abc"


@dataclass(frozen=True, kw_only=True)
class Plain:
    name: Literal["plain"] = "plain"


@dataclass(frozen=True, kw_only=True)
class Fancy:
    name: Literal["fancy"] = "fancy"
    color: str | None = None


@dataclass(frozen=True, kw_only=True)
class WordsConfig:
    name: Literal["words", "more_words"] = "words"
    path: str
    size: int = 10
    share: float | None = None
    level: Literal["easy", "hard"] = "easy"
    stop: tuple[str, ...] = ()
    shape: Shape = Shape()
    shapes: tuple[Shape, ...] = ()
    style: Plain | Fancy = Plain()
    options: Mapping[str, Json] = field(default_factory=dict)
    chat: bool | None = None

    def __post_init__(self) -> None:
        checks.at_least("size", self.size, 1)
        if self.size == 13:
            raise ValueError("size is 13, which is unlucky")


class Words:
    Config = WordsConfig


class Bare: ...


@dataclass(frozen=True)
class OddConfig:
    name: str
    things: set[str] = frozenset()


class Odd:
    Config = OddConfig
"""
REWARD = """
from dataclasses import dataclass
from typing import Literal

from parity.rewards.reward import Reward


@dataclass(frozen=True)
class VowelsConfig:
    name: Literal["vowels"] = "vowels"
    count: int = 1


class Vowels(Reward):
    Config = VowelsConfig
"""
ALGORITHMS = """
from dataclasses import dataclass
from typing import Literal

from parity.algorithms.config import PpoClipLossConfig


@dataclass(frozen=True, kw_only=True)
class WideConfig(PpoClipLossConfig):
    name: Literal["wide"] = "wide"
    clip_high: float = 0.9
    extra: bool = False


@dataclass(frozen=True, kw_only=True)
class PoorConfig:
    name: Literal["poor"] = "poor"
    aggregation: str = "token_mean"


@dataclass(frozen=True, kw_only=True)
class RankConfig:
    name: Literal["rank"] = "rank"
    power: float = 1.0


class Wide:
    Config = WideConfig

class Poor:
    Config = PoorConfig

def rank(rewards, config):
    return rewards

rank.Config = RankConfig
"""
MODULES = {
    "plug_tasks.py": TASKS,
    "plug_reward.py": REWARD,
    "plug_algorithms.py": ALGORITHMS,
}
POINTS = {
    "parity.tasks": {
        "words": "plug_tasks:Words",
        "more_words": "plug_tasks:Words",
        "bare": "plug_tasks:Bare",
        "odd": "plug_tasks:Odd",
    },
    "parity.rewards": {"vowels": "plug_reward:Vowels"},
    "parity.losses": {"wide": "plug_algorithms:Wide", "poor": "plug_algorithms:Poor"},
    "parity.advantages": {"rank": "plug_algorithms:rank"},
}
WORDS = ("tasks.name=words", "tasks.path=w.txt")


@pytest.fixture
def plugged(tmp_path_factory: pytest.TempPathFactory):
    with installed(tmp_path_factory.mktemp("plugged"), MODULES, POINTS):
        yield


pytestmark = pytest.mark.usefixtures("plugged")


def section(config: TrainConfig) -> dict[str, object]:
    return dataclasses.asdict(config.tasks)


def test_a_third_party_name_brings_its_own_section():
    config = load_train(
        "quickstart",
        [
            *WORDS,
            "tasks.share=1",
            "tasks.level=hard",
            "tasks.stop=[a,b]",
            "tasks.shape.letters=5",
            "tasks.shapes=[{letters: 1},{alphabet: xyz}]",
            "tasks.style={name: fancy, color: red}",
            "tasks.options={a: [1, {b: null}]}",
        ],
    )
    assert type(config.tasks).__name__ == "WordsConfig"
    assert section(config) == {
        "name": "words",
        "path": "w.txt",
        "size": 10,
        "share": 1.0,
        "level": "hard",
        "stop": ("a", "b"),
        "shape": {"letters": 5, "alphabet": "abc"},
        "shapes": ({"letters": 1, "alphabet": "abc"}, {"letters": 3, "alphabet": "xyz"}),
        "style": {"name": "fancy", "color": "red"},
        "options": {"a": [1, {"b": None}]},
        "chat": False,  # the recipe's own value, as between kinds that ship
    }
    assert isinstance(section(config)["share"], float)
    check(config)


def test_a_class_may_be_registered_under_several_names():
    config = load_train("quickstart", ["tasks.name=more_words", "tasks.path=w"])
    assert config.tasks.name == "more_words"


def test_every_seam_with_a_section_takes_third_party_names(tmp_path: Path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "kind: train\ndefaults: [quickstart]\n"
        "tasks: {name: words, path: w.txt, size: 3}\n"
        "reward: {name: sum, parts: [{name: vowels, count: 2, weight: 0.5}, {name: exact}]}\n"
        "advantage: {name: rank, power: 2}\n"
        "loss: {name: wide, extra: true}\n"
        "eval: {tasks: {name: words, path: held.txt}}\n"
    )
    config = load_train(str(recipe))
    check(config)
    assert section(config)["size"] == 3
    assert dataclasses.asdict(config.advantage) == {"name": "rank", "power": 2.0}
    assert (config.loss.name, config.loss.clip_high) == ("wide", 0.9)
    assert config.eval.tasks is not None
    assert dataclasses.asdict(config.eval.tasks)["path"] == "held.txt"
    save(config, tmp_path / "config.yaml")
    assert load_saved(tmp_path / "config.yaml") == config
    assert load(str(tmp_path / "config.yaml")) == config
    assert resolve(TrainConfig, to_plain(config)) == config


def test_sft_takes_them_too():
    config = load_sft("sft_quickstart", [*WORDS, "reward.name=vowels", "reward.count=3"])
    check(config)
    assert dataclasses.asdict(config.reward) == {"name": "vowels", "count": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tasks.name=words"], r"tasks\.path is missing and has no default; set tasks\.path="),
        (
            [*WORDS, "tasks.sizes=3"],
            r"tasks\.sizes=3: there is no key .*Did you mean tasks\.size\?",
        ),
        ([*WORDS, "tasks.zzz=3"], r"there is no key tasks\.zzz\. Keys of tasks: name, path, size"),
        (
            [*WORDS, "tasks.shape.leters=3"],
            r"no key tasks\.shape\.leters\. Did you mean tasks\.sha",
        ),
        (
            [*WORDS, "tasks.size=1.5"],
            r"tasks\.size is 1\.5 \(a number\); it must be a whole number",
        ),
        (
            [*WORDS, "tasks.level=heard"],
            r"tasks\.level is 'heard'; known: easy, hard\. Did you mean",
        ),
        ([*WORDS, "tasks.shapes=[{letters: x}]"], r"tasks\.shapes\.0\.letters is 'x'"),
        (
            [*WORDS, "tasks.style={name: fanci}"],
            r"tasks\.style\.name is 'fanci'; known: plain, fancy",
        ),
        ([*WORDS, "tasks.size=0"], r"tasks\.size is 0; it must be >= 1"),
        ([*WORDS, "tasks.size=13"], r"tasks\.size is 13, which is unlucky"),
        (
            [*WORDS, "tasks.dataset=x"],
            r"tasks\.dataset='x' has no effect: it belongs to .*=reasoning",
        ),
        (["tasks.letters=3"], r"tasks\.letters=3: there is no key tasks\.letters"),
        (["tasks.datset=x"], r"there is no key tasks\.datset\. Did you mean tasks\.dataset\?"),
        (
            ["tasks.name=wrds"],
            r"'wrds'; known: reasoning_gym, jsonl, parquet, bare, more_words, odd, w",
        ),
        (["tasks.name=bare"], r"tasks\.name is 'bare', which can't be used: .*no attribute Config"),
        (["tasks.name=odd"], r"the field things of plug_tasks\.OddConfig is a set\[str\], which"),
        (["reward.name=vowels", "reward.cont=2"], r"Did you mean reward\.count\?"),
        (["loss.name=poor"], r"loss\.name is 'poor', .* has no field aggregation of the type that"),
        (["loss.name=wide", "loss.extra=1"], r"loss\.extra is 1"),
        (["engine.name=mine"], r"engine\.name is 'mine'; known: embedded"),
    ],
)
def test_third_party_sections_are_closed_and_strict(words: list[str], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        load_train("quickstart", words)
    assert "\n" not in str(caught.value)


def test_parts_of_a_sum_are_checked_by_their_own_section():
    def parts(part: str) -> TrainConfig:
        return load_train("quickstart", ["reward.name=sum", f"reward.parts=[{part}]"])

    check(parts("{name: vowels, count: 2, weight: 2, label: v}"))
    with pytest.raises(
        ConfigError, match=r"reward\.parts\.0\.cuont=2: .* mean reward\.parts\.0\.cou"
    ):
        check(parts("{name: vowels, cuont: 2}"))
    with pytest.raises(ConfigError, match=r"reward\.parts\.0\.name is 'vowel'; known: .*'vowels'"):
        check(parts("{name: vowel}"))


def test_keys_of_the_replaced_kind_are_dropped_and_may_be_set_again(tmp_path: Path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("defaults: [quickstart]\ntasks: {name: words, path: w.txt}\n")
    assert load_train(str(recipe)).tasks.name == "words"
    back = load_train(str(recipe), ["tasks.name=jsonl"])
    assert to_plain(back.tasks)["path"] == "w.txt"


def test_a_saved_config_whose_package_is_gone_names_what_is_missing(tmp_path: Path, monkeypatch):
    save(load_train("quickstart", WORDS), tmp_path / "config.yaml")
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    with pytest.raises(ConfigError, match=r"tasks\.name is 'words'; known: reasoning_gym, jsonl"):
        load_saved(tmp_path / "config.yaml")


def test_a_run_of_shipped_names_reads_no_entry_points_and_imports_no_plugin(monkeypatch):
    def refuse(group: str) -> None:
        raise AssertionError(f"entry points of {group} were read")

    monkeypatch.setattr(registry, "entry_points", refuse)
    for recipe in ("quickstart", "sft_quickstart"):
        check(load(recipe, ["reward.name=sum", "reward.parts=[{name: exact}]"]))
    assert not set(sys.modules) & {name.removesuffix(".py") for name in MODULES}


def test_only_the_module_of_the_name_that_is_used_is_imported():
    load_train("quickstart", ["reward.name=vowels"])
    assert "plug_reward" in sys.modules
    assert "plug_tasks" not in sys.modules


def test_completion_knows_every_name():
    leaves = {key.path: key for key in keys.leaves(TrainConfig)}
    assert get_args(leaves["reward.name"].annotation)[-2:] == ("sum", "vowels")
    assert set(get_args(leaves["eval.tasks.name"].annotation)) > {"jsonl", "parquet", "words"}
    assert "plug_reward" not in sys.modules


def test_parity_config_prints_and_checks_the_section(capsys):
    assert main(["config", "quickstart", *WORDS, "reward.name=vowels"]) == 0
    shown = capsys.readouterr().out
    assert "tasks:\n  name: words\n  path: w.txt\n" in shown
    assert "reward:\n  name: vowels\n  count: 1\n" in shown
    assert main(["config", "quickstart", *WORDS, "tasks.pth=x"]) == 2
    assert "Did you mean tasks.path?" in capsys.readouterr().err
