"""A working directory of its own for every test, and stand-ins for what commands start."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

MODULES = (("launch", ("train", "resume")), ("sft.command", ("sft",)), ("measure", ("evaluate",)))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PARITY_RUNS_DIR", "PARITY_TRACEBACK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class Recorder:
    """Stands in for the modules of commands: keeps the call, ends as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple, dict]] = []
        self.ending: int | BaseException = 0
        for module, names in MODULES:
            stand_in = ModuleType(f"parity.{module}")
            for name in names:
                setattr(stand_in, name, self.function(name))
            monkeypatch.setitem(sys.modules, f"parity.{module}", stand_in)

    def function(self, name: str):
        def record(*arguments, **options):
            self.calls.append((name, arguments, options))
            if isinstance(self.ending, BaseException):
                raise self.ending
            return self.ending

        return record


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture
def make_run(elsewhere: Path):
    """Makes a run folder of that name, as `parity train` does."""

    def make(name: str) -> Path:
        folder = elsewhere / "runs" / name
        folder.mkdir(parents=True)
        info = {"recipe": "quickstart", "kind": "train", "started": "x", "parity_version": "1"}
        (folder / "run.json").write_text(json.dumps(info))
        return folder

    return make
