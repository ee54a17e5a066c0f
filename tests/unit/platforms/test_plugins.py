"""Platforms of other packages: loaded as PARITY_PLUGINS says, and loud where they can't be."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from parity.platforms import plugins
from parity.platforms.plugins import all_platforms, load_plugins

SOURCE = """
from parity.platforms.cpu import CpuPlatform
from parity.platforms.platform import Platform

class Good(CpuPlatform):
    for _name in [name for name in CpuPlatform.__dict__ if not name.startswith("__")]:
        locals()[_name] = CpuPlatform.__dict__[_name]
    name = "{name}"
    vendor = "acme"
    precedence = 200

    @classmethod
    def built_for(cls, facts):
        return "Acme 1.0" if facts.versions.get("acme") else None

class Abstract(Platform):
    for _name in [name for name in CpuPlatform.__dict__ if not name.startswith("__")]:
        locals()[_name] = CpuPlatform.__dict__[_name]
    name = "{name}"
    del module

not_a_class = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with platforms named `acme`, importable in this test."""
    name = f"acme_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(name="acme"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, plugins.GROUP)


@pytest.mark.parametrize("policy", ["", "auto", " auto ", "acme", "acme,"])
def test_a_plugin_that_the_policy_lets_through_is_loaded(module: str, policy: str):
    found = load_plugins(policy, [point("acme", f"{module}:Good")])
    assert found.failures == ()
    assert found.platforms["acme"].vendor == "acme"


def test_none_loads_nothing_and_imports_nothing(module: str):
    found = load_plugins("none", [point("acme", f"{module}:Good")])
    assert (found.platforms, found.failures) == ({}, ())
    assert module not in sys.modules


def test_names_load_only_those_and_an_unknown_one_is_a_failure(module: str):
    points = [point("acme", f"{module}:Good"), point("broken", "no_such_module:X")]
    found = load_plugins("acme,acmee", points)
    assert list(found.platforms) == ["acme"]
    (failure,) = found.failures
    assert failure.message.startswith("PARITY_PLUGINS names 'acmee'; known: auto, none, acme")
    assert "Did you mean 'acme'?" in failure.message


def test_auto_among_names_is_a_mistake_and_is_said(module: str):
    (failure,) = load_plugins("auto,acme", [point("acme", f"{module}:Good")]).failures
    assert failure.message == "PARITY_PLUGINS has 'auto' among names; write it alone."


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:X", "can't be loaded: ModuleNotFoundError"),
        ("{module}:Missing", "can't be loaded: AttributeError"),
        ("{module}:not_a_class", "isn't a subclass of"),
        ("{module}:Abstract", "lacks methods of the contract: module"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_kept_with_its_reason(module, value, message):
    found = load_plugins("auto", [point("acme", value.format(module=module))])
    assert found.platforms == {}
    (failure,) = found.failures
    assert message in failure.message
    assert (failure.traceback is not None) is ("can't be loaded" in message)


def test_one_bad_plugin_stops_no_other(module: str):
    points = [point("acme", f"{module}:Good"), point("bad", "no_such_module:X")]
    found = load_plugins("auto", points)
    assert list(found.platforms) == ["acme"]
    assert "Traceback" in (found.failures[0].traceback or "")


def test_a_plugin_that_ends_the_interpreter_at_import_is_only_a_failure(tmp_path, monkeypatch):
    (tmp_path / "acme_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    (failure,) = load_plugins("auto", [point("acme", "acme_exits:X")]).failures
    assert "SystemExit: 3" in failure.message


def test_names_that_ship_that_are_taken_twice_or_that_differ_are_refused(module: str):
    (shipped,) = load_plugins("auto", [point("cuda", f"{module}:Good")]).failures
    assert "ships with Parity; rename it" in shipped.message
    twice = [point("acme", f"{module}:Good"), point("acme", f"{module}:Abstract")]
    (failure,) = load_plugins("auto", twice).failures
    assert "uninstall all but one" in failure.message
    (failure,) = load_plugins("auto", [point("acne", f"{module}:Good")]).failures
    assert "calls itself 'acme'; its entry point must have the same name" in failure.message


def test_a_plugin_takes_part_in_the_decision(module: str):
    from unit.platforms.made_facts import make

    from parity.platforms.detect import decide

    kinds = [*all_platforms().values(), load_plugins("auto", [point("acme", f"{module}:Good")])
             .platforms["acme"]]  # fmt: skip
    decision = decide(make("cuda", versions={"acme": "1"}), platforms=kinds)
    assert (decision.platform, decision.vendor) == ("acme", "acme")
    assert decide(make("cuda"), platforms=kinds).platform == "cuda"


def test_the_platforms_that_ship_are_always_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARITY_PLUGINS", "none")
    assert list(all_platforms()) == ["cpu", "cuda", "npu", "rocm"]


HOSTILE = {
    "raise SystemExit(0)": "can't be loaded: SystemExit: 0",
    "class E(BaseException): pass\nraise E('x')": "can't be loaded: E: x",
    "raise RuntimeError('\\x1b[31mred\\nline')": "can't be loaded: RuntimeError: ?[31mred line",
    "raise RuntimeError('x' * 9999)": "x" * 300 + "...",
    "class E(Exception):\n    def __str__(self): raise ValueError('no')\nraise E()": "no message",
    "{good}\n    precedence = 'high'": "says precedence='high'; its type must be",
    "{good}\n    precedence = True": "says precedence=True; its type must be",
    "{good}\n    precedence = 0": "says precedence=0; it must be 1 or more",
    "{good}\n    visibility = 'CUDA'": "says visibility='CUDA'",
    "{good}\n    smi_tools = 'rocm-smi'": "says smi_tools='rocm-smi'",
    "{good}\n    device_nodes = (3,)": "says device_nodes=(3,)",
    "{good}\n    has_graph_capture = 1": "says has_graph_capture=1",
    "{good}\n    ray_resource = 2": "says ray_resource=2",
    "{good}\n    def __init__(self): raise OSError('no')": "can't be loaded: OSError: no",
    "{good}\n    remedy = classmethod(lambda cls: None)": "a remedy that isn't a text",
    "{good}\n    def defaults(self, role, environment): return ['X']": "that isn't a Default",
}
GOOD = SOURCE.partition("class Abstract")[0].format(name="hostile")


@pytest.mark.parametrize("body", HOSTILE)
def test_no_plugin_reaches_beyond_its_own_line(body: str, tmp_path: Path, monkeypatch):
    name = f"hostile_{list(HOSTILE).index(body)}"
    (tmp_path / f"{name}.py").write_text(body.replace("{good}", GOOD.rstrip()) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_plugins("auto", [point("hostile", f"{name}:Good")])
    (failure,) = found.failures
    assert HOSTILE[body] in failure.message
    assert failure.message.isprintable()
    assert found.platforms == {}
    sys.modules.pop(name, None)


def test_what_a_plugin_prints_does_not_end_up_in_the_output(tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "noisy_platform.py").write_text("print('noise')\n" + GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "hostile" in load_plugins("", [point("hostile", "noisy_platform:Good")]).platforms
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "noise\n")


def test_a_plugin_that_hangs_is_named_while_it_does(tmp_path: Path, monkeypatch, caplog):
    (tmp_path / "slow_platform.py").write_text("import time\ntime.sleep(0.3)\n" + GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "PATIENCE_S", 0.05)
    assert load_plugins("", [point("hostile", "slow_platform:Good")]).failures == ()
    assert "slow_platform:Good" in caplog.text
    assert "PARITY_PLUGINS=none leaves it out" in caplog.text


@pytest.mark.parametrize("name", ["auto", "none"])
def test_a_plugin_cannot_take_a_word_that_has_a_meaning(name: str, tmp_path: Path, monkeypatch):
    (tmp_path / f"word_{name}.py").write_text(SOURCE.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    (failure,) = load_plugins("", [point(name, f"word_{name}:Good")]).failures
    assert "has a meaning of its own" in failure.message


def test_a_word_that_names_no_plugin_is_shown_on_one_line_and_not_in_full():
    (failure,) = load_plugins("x\n\x1b" + "y" * 3000, []).failures
    assert failure.name == "x??" + "y" * 57 + "..."
    assert failure.message.startswith(f"PARITY_PLUGINS names {failure.name!r}; known: ")
