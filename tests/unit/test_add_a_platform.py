"""The code of docs/how-to/add-a-platform.md is the example package, line by line."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/add-a-platform.md"
EXAMPLE = ROOT / "examples/xpu-platform"
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def test_every_block_of_code_says_which_file_it_is_of():
    fences = re.findall(r"^```(python|toml)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == len(BLOCKS) > 6


@pytest.mark.parametrize(("file", "code"), BLOCKS)
def test_the_block_stands_in_the_file_as_it_is(file: str, code: str):
    assert code in (EXAMPLE / file).read_text(encoding="utf-8")


def test_every_file_that_the_commands_name_exists():
    named = re.findall(r"(?:examples|tests)/[\w/.-]+", PAGE.read_text(encoding="utf-8"))
    assert named
    for path in named:
        assert (ROOT / path).exists() or (EXAMPLE / path).exists(), path
