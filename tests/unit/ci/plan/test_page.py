"""What docs/hardware-ci.md shows of registering and planning is true."""

import re
import shlex
from pathlib import Path

import pytest
from ci_repository import inventory, repository

from parity.cli.main import main

PAGE = (Path(__file__).parents[4] / "docs/hardware-ci.md").read_text()
SECTIONS = PAGE.partition("## Register a test")[2].partition("## Who can make")[0]
REGISTERED, TABLE = re.findall(r"```python\n(.*?)```", SECTIONS, re.DOTALL)
COMMANDS = re.findall(r"^parity (.*)$", SECTIONS, re.MULTILINE)
FILES = {
    "tests/hardware/test_step.py": REGISTERED
    + "from parity.ci.register import register_ci_cases\n"
    + 'register_ci_cases(table="step_cases.py")\n',
    "tests/hardware/step_cases.py": TABLE,
}


def test_the_examples_register(tmp_path):
    (file,) = inventory(tmp_path, FILES).files

    assert [each.backend for each in file.registrations] == ["cuda", "npu"]
    assert file.gates[0].hard_max == 100.0
    assert file.cases[0].fit(4).ep == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run(command, tmp_path, monkeypatch, capsys):
    repository(tmp_path, FILES)
    (tmp_path / "results").mkdir()
    row = '{"path": "tests/hardware/test_step.py", "backend": "cuda", "suite": "h100-4"'
    (tmp_path / "times.jsonl").write_text(row + ', "time_s": 610}\n')
    text = '{"backend": "cuda", "suite": "h100-4", "files": []}'
    (tmp_path / "results/results.json").write_text(text)
    monkeypatch.chdir(tmp_path)

    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out
