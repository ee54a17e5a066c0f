"""Names of other packages: found by entry points, imported on use, refused where unclear."""

from pathlib import Path

import pytest
from third_party import installed

from parity.errors import ConfigError, UnsupportedError
from parity.registry import Registry

SHIPPED = Registry("tasks", {"jsonl": "parity.tasks.jsonl:JsonlSource"})
MODULE = """
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

@dataclass(frozen=True)
class Good:
    name: Literal["good", "nested"] = "good"

@dataclass(frozen=True)
class AnyName:
    name: str

@dataclass
class Loose:
    name: str = "loose"

@dataclass(frozen=True)
class Unreadable:
    name: "Literal['unreadable']"
    path: "Path"

@dataclass(frozen=True)
class Nameless:
    size: int = 1

class Source:
    Config = Good
    class Inner:
        Config = Good

class Bare: ...
class WithAnyName: Config = AnyName
class WithLoose: Config = Loose
class WithUnreadable: Config = Unreadable
class WithNameless: Config = Nameless
class WithInstance: Config = Good()
"""
POINTS = {
    "good": "somebodys:Source",
    "nested": "somebodys:Source.Inner [extra]",
    "other": "somebodys:Source",
    "any": "somebodys:WithAnyName",
    "bare": "somebodys:Bare",
    "loose": "somebodys:WithLoose",
    "unreadable": "somebodys:WithUnreadable",
    "nameless": "somebodys:WithNameless",
    "instance": "somebodys:WithInstance",
    "nowhere": "somebodys:Gone",
    "lost": "no_such_module:Source",
    "jsonl": "somebodys:Source",
}


@pytest.fixture
def somebodys(tmp_path: Path):
    with installed(tmp_path, {"somebodys.py": MODULE}, {"parity.tasks": POINTS}):
        yield


@pytest.mark.usefixtures("somebodys")
def test_names_that_ship_come_first_and_cannot_be_taken_over():
    assert SHIPPED.foreign_names() == sorted(POINTS.keys() - {"jsonl"})
    assert set(SHIPPED.names()) == set(POINTS)
    assert SHIPPED.load("jsonl").__module__ == "parity.tasks.jsonl"  # pyright: ignore


@pytest.mark.usefixtures("somebodys")
@pytest.mark.parametrize(("name", "config"), [("good", "Good"), ("nested", "Good"), ("any", "Any")])
def test_the_config_of_another_package_is_its_frozen_dataclass(name: str, config: str):
    assert SHIPPED.config_of(name).__name__.startswith(config)


@pytest.mark.usefixtures("somebodys")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bare", r"tasks\.bare \(somebodys:Bare\) has no attribute Config; .* frozen dataclass"),
        ("loose", r"tasks\.loose .* has the Config .*Loose.*; .* frozen dataclass"),
        ("instance", "has the Config Good"),
        ("nameless", r'no field that takes its name; add `name: Literal\["nameless"\]'),
        ("other", r'no field that takes its name; add `name: Literal\["other"\] = "other"`'),
        ("unreadable", r"annotations of Config of tasks\.unreadable .*Path.*at run time"),
        ("nowhere", r"registered as somebodys:Gone, which doesn't exist"),
        ("goood", r"tasks has no 'goood'; known: any, bare, good, .*Did you mean 'good'"),
    ],
)
def test_what_a_run_file_cannot_use_is_one_sentence(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        SHIPPED.config_of(name)


@pytest.mark.usefixtures("somebodys")
def test_a_module_that_cannot_be_imported_says_what_is_missing():
    with pytest.raises(UnsupportedError, match=r"tasks\.lost needs no_such_module"):
        SHIPPED.config_of("lost")


@pytest.mark.usefixtures("somebodys")
def test_a_name_that_two_packages_register_is_refused(tmp_path: Path):
    second = {"parity.tasks": {"good": "others:Source", "any": "somebodys:WithAnyName"}}
    (tmp_path / "second").mkdir()
    with installed(tmp_path / "second", {"others.py": MODULE}, second, name="other-people"):
        with pytest.raises(ConfigError, match="as others:Source and as somebodys:Source; uninst"):
            SHIPPED.load("good")
        assert SHIPPED.config_of("any").__name__ == "AnyName"
