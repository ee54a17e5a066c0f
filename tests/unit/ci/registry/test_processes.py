"""Many files are read by several processes, and the result is that of one."""

import os
import signal
import threading
from pathlib import Path

import pytest
from ci_repository import TODAY, repository

from parity.ci.config import Config
from parity.ci.registry import discovery
from parity.ci.registry.discovery import ReadingError, python_files, read_all

TEST = """from parity.ci.register import register_cuda_ci

register_cuda_ci({seconds}, "h100-4", labels=["fsdp"])
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Some good tests, one without a registration and one that can't be parsed."""
    files = {f"tests/part_{n % 7}/test_{n:03}.py": TEST.format(seconds=n + 1) for n in range(40)}
    files |= {"tests/test_nothing.py": "x = 1\n", "tests/test_broken.py": "def (:\n"}
    return repository(tmp_path, files)


def test_several_processes_find_what_one_finds(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(python_files(config))
    alone = read_all(paths, config, TODAY, processes=1)
    monkeypatch.setattr(discovery, "CHUNK", 5)
    assert read_all(paths, config, TODAY, processes=3) == alone
    assert sum(bool(problems) for _, problems in alone) == 2


def test_few_files_and_processes_with_threads_are_read_by_this_one(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(python_files(config))
    monkeypatch.setattr(discovery, "available_cores", lambda: 4)
    monkeypatch.setattr(discovery, "_some", lambda _, **__: [os.getpid()])
    assert read_all(paths, config, TODAY) == [os.getpid()]
    monkeypatch.setattr(discovery, "FILES_PER_PROCESS", 1)
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    try:
        assert read_all(paths, config, TODAY) == [os.getpid()]
    finally:
        go_on.set()
        thread.join()


def test_a_process_that_is_killed_is_told(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> list[discovery.Found]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    monkeypatch.setattr(discovery, "_one", die)
    with pytest.raises(ReadingError, match="one of the 2 processes"):
        read_all(sorted(python_files(config)), config, TODAY, processes=2)
