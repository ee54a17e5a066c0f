"""The commands that a run ends with can be typed as they stand."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from parity.cli.locate import find_run, runs_dir
from parity.ending import Ending, what_next
from parity.errors import DataError
from parity.folder import RunFolder
from parity.platforms.cpu import CpuPlatform


@pytest.mark.parametrize("parent", ["runs", "elsewhere/deep"])
@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_the_commands_find_the_run_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str, status: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARITY_RUNS_DIR", raising=False)
    path = tmp_path / parent / "mine"
    path.mkdir(parents=True)
    (path / "run.json").write_text("{}")
    told = what_next(RunFolder(path), SimpleNamespace(status=status, steps=3))
    for command in told.split("`")[1::2]:
        assert find_run(command.split()[2], runs_dir(None)).path.samefile(path)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_failure_is_marked_as_late_where_training_had_begun_and_told_to_the_log_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_begun
) -> None:
    ending = Ending(RunFolder(tmp_path), CpuPlatform())
    error = DataError("tasks.jsonl:3: no prompt")
    ending.failure(error, has_begun=has_begun)
    assert error.is_late == has_begun
    assert "run_broke_off reason=tasks.jsonl:3: no prompt" in caplog.text
    assert all(record.levelname == "INFO" for record in caplog.records)
