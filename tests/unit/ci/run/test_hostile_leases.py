"""Lock files that somebody has tampered with, and jobs that race for one device or were killed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from parity.ci.run.leases import (
    LeaseError,
    Owner,
    holder,
    lease,
    locked,
    new_marker,
    registered,
)
from parity.ci.run.processes import MARKER

RACE = """
import sys, time
from pathlib import Path
from parity.ci.run.leases import Owner, lease
folder, name = Path(sys.argv[1]), sys.argv[2]
for turn in range(10):
    owner = Owner(name, 1, "here", f"here-{name}-0123456789abcdef", "now")
    with lease(["gpu-a"], 1, owner, folder=folder, timeout_s=60):
        inside = folder / "inside"
        assert not inside.exists(), "two jobs hold one device"
        inside.touch()
        time.sleep(0.002)
        inside.unlink()
"""
KILLED = """
import os, subprocess, sys, time
from pathlib import Path
from parity.ci.run.leases import new_marker, registered
from parity.ci.run.processes import MARKER
marker = new_marker()
with registered(marker, Path(sys.argv[1])):
    env = {**os.environ, MARKER: marker + ".x.1"}
    left = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    print(left.pid, flush=True)
    time.sleep(600)
"""


def owner(marker: str = "here-1-0123456789abcdef") -> Owner:
    return Owner("suite 1/2", 1, "here", marker, "2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "text",
    [
        '{"job": "x", "pid": 1, "host": "h", "marker": "", "since": "s"}',
        '{"job": "x", "pid": 1, "host": "h", "marker": "here", "since": "s"}',
        '{"job": "x", "pid": 1, "host": "h", "marker": 5, "since": "s"}',
        "[" * 4000,
        "\0" * 4096,
        "[1]",
    ],
)
def test_a_forged_lock_file_ends_no_process(text: str, tmp_path: Path) -> None:
    environment = {**os.environ, MARKER: "here-7-0123456789abcdef.x.1"}
    other = subprocess.Popen(["sleep", "600"], env=environment)
    try:
        while psutil.Process(other.pid).name() != "sleep":
            time.sleep(0.01)
        (tmp_path / "gpu-a.lock").write_text(text)
        with lease(["gpu-a"], 1, owner(), folder=tmp_path, timeout_s=1) as held:
            assert held.ended == ()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)


def test_a_holder_is_told_on_one_harmless_line(tmp_path: Path) -> None:
    row = {"job": "a\n::x::", "pid": 1, "host": "h\r", "marker": owner().marker, "since": "s" * 999}
    (tmp_path / "gpu-a.lock").write_text(json.dumps(row))
    found = holder("gpu-a", tmp_path)
    assert found is not None
    assert (found.job, found.host, len(found.since)) == ("a : :x: :", "h", 80)


def test_a_lock_file_that_is_none_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "gpu-a.lock").symlink_to("/etc/passwd")
    (tmp_path / "gpu-b.lock").mkdir()
    for key in ("gpu-a", "gpu-b"):
        with (
            pytest.raises(LeaseError, match=rf"{key}\.lock can't be opened"),
            lease([key], 1, owner(), folder=tmp_path, timeout_s=1),
        ):
            pass


def test_a_lock_on_a_file_that_was_removed_meanwhile_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu-a.lock"
    opened, real = [0], os.open

    def open_then_remove(*words, **options) -> int:
        file = real(*words, **options)
        opened[0] += 1
        if opened[0] == 1:
            path.unlink()
        return file

    monkeypatch.setattr(os, "open", open_then_remove)
    file = locked(path)
    assert file is not None
    assert opened[0] == 2
    assert os.path.samestat(os.fstat(file), path.stat())
    assert path.stat().st_mode & 0o777 == 0o666
    os.close(file)


def test_jobs_that_race_for_one_device_never_hold_it_together(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RACE, str(tmp_path)]
    jobs = [subprocess.Popen([*words, str(n)], stderr=subprocess.PIPE) for n in range(3)]
    for job in jobs:
        _, told = job.communicate(timeout=120)
        assert job.returncode == 0, told.decode()


def test_what_a_killed_job_left_is_ended_by_the_next_one_of_the_host(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        left = psutil.Process(int(job.stdout.readline()))
        with registered(new_marker(), tmp_path) as ended:
            assert ended == []  # it lives: nothing of it is touched
            assert left.status() != psutil.STATUS_ZOMBIE
        job.kill()
    with registered(new_marker(), tmp_path) as ended:
        assert [f"pid {left.pid} (sleep 600), left by a job" in text for text in ended] == [True]
    left.wait(10)
    assert list((tmp_path / "jobs").iterdir()) == []


def test_other_files_among_the_jobs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "notes").write_text("mine")
    other = tmp_path / "jobs" / "elsewhere-1-0123456789abcdef"
    other.touch()  # a job of another container, whose processes we can't see
    with registered(new_marker(), tmp_path):
        pass
    assert sorted(p.name for p in (tmp_path / "jobs").iterdir()) == [other.name, "notes"]
