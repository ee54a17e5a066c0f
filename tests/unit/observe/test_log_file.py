import logging
from pathlib import Path

import pytest

from parity.observe.log_file import LogFile


def logger_to(path: Path, told: list[str]) -> tuple[logging.Logger, LogFile]:
    handler = LogFile(path, tell=told.append)
    logger = logging.Logger("full")
    logger.addHandler(handler)
    return logger, handler


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told_once_and_raises_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, told = tmp_path / "log.txt", list[str]()
    path.symlink_to("/dev/full")
    logger, handler = logger_to(path, told)
    for _ in range(1000):
        logger.warning("something that is long enough to fill a buffer at some time")
    handler.close()
    (sentence,) = told
    assert "log.txt" in sentence
    assert "No space left" in sentence
    assert handler.num_lost == 1000
    assert capsys.readouterr() == ("", "")


def test_a_line_that_can_not_be_made_is_a_fault_of_the_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    told: list[str] = []
    logger, handler = logger_to(tmp_path / "log.txt", told)
    logger.warning("%d", "no number")
    logger.warning("next")
    handler.close()
    assert told == []
    assert "Logging error" in capsys.readouterr().err
    assert "next" in (tmp_path / "log.txt").read_text()
