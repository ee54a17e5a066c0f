"""docs/hardware-ci.md is true: what it shows loads, renders, runs and is current."""

import re
import shlex
from pathlib import Path

import pytest
from unit.ci.workflow.sample import TEXT

from parity.ci.docs import with_tables
from parity.ci.loading import load_config
from parity.ci.patches import read_patches
from parity.ci.workflow.files import render
from parity.ci.workflow.settings import read_settings
from parity.cli.main import main

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "hardware-ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def block(start: str) -> str:
    found = [text for text in BLOCKS if text.startswith(start)]
    assert len(found) == 1
    return found[0]


def test_the_smallest_data_file_renders(tmp_path: Path) -> None:
    (tmp_path / "ci.toml").write_text(block("schema = 1"))
    files = {Path(path).name for path in render(load_config(tmp_path))}
    assert files == {"ci-cpu.yml", "ci-rocm.yml", "ci-rocm-runs.yml"}


def test_the_patch_is_a_declaration(tmp_path: Path) -> None:
    (tmp_path / "ci.toml").write_text(TEXT + block("[patches."))
    assert list(read_patches(load_config(tmp_path))) == ["sampler-rename"]


def test_the_keys_of_the_table_are_those_that_are_read() -> None:
    said = set(re.findall(r"^\| `(?:\[\[)?workflow\.(\w+)", PAGE, re.MULTILINE))
    known = set(read_settings(load_config(ROOT)).__dataclass_fields__)
    assert said >= {"install", "repository", "environment", "lock", "secrets", "lanes", "slots"}
    assert said <= known


def test_the_tables_are_current() -> None:
    assert with_tables(PAGE, load_config(ROOT), name="the page") == PAGE


COMMANDS = re.findall(r"^parity (ci .*)$", PAGE.partition("## This repository")[2], re.MULTILINE)


def test_there_are_commands_to_try() -> None:
    assert len(COMMANDS) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0, capsys.readouterr().err
