"""The tiny process beside a run: quiet while bytes come, deadly when they stay out."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.supervise.sentinel import BEAT, Sentinel

SCRIPT = """
import sys, time
from parity.supervise.sentinel import Sentinel
sentinel = Sentinel(sys.argv[1], 0.5)
sys.stdout.write("ready\\n")
sys.stdout.flush()
time.sleep(60)
"""


def test_a_sentinel_that_gets_its_bytes_stays_quiet_and_ends_with_its_owner(tmp_path: Path) -> None:
    sentinel = Sentinel(str(tmp_path / "hang.txt"), timeout_s=2.0)
    for _ in range(10):
        sentinel.send(BEAT)
        time.sleep(0.05)
    begun_s = time.monotonic()
    sentinel.close()
    assert time.monotonic() - begun_s < 5
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def silent(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "hang.txt")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_silence_ends_the_process_after_the_page_is_written(silent, tmp_path: Path) -> None:
    _, error = silent.communicate(timeout=30)
    assert silent.returncode == -signal.SIGKILL
    assert "hang.txt has all stacks" in error
    page = (tmp_path / "hang.txt").read_text()
    assert page.startswith("no Python thread of process")
    assert 'File "<string>", line 7 in <module>' in page


def test_a_stopped_process_is_not_a_stuck_one(silent, tmp_path: Path) -> None:
    os.kill(silent.pid, signal.SIGSTOP)
    time.sleep(3.5)  # its limit, and the time it takes to write a page
    assert silent.poll() is None
    assert not (tmp_path / "hang.txt").exists()


def test_a_sentinel_that_was_killed_costs_nothing(tmp_path: Path) -> None:
    sentinel = Sentinel(str(tmp_path / "hang.txt"), timeout_s=2.0)
    sentinel._process.kill()
    sentinel._process.wait()
    sentinel.send(BEAT)
    sentinel.close()
