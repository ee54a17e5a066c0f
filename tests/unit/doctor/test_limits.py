"""Each limit is read, judged, and says what to do; none makes the doctor fail."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from parity.doctor import limits

KIB = 1024


def test_shared_memory_that_is_too_small_shows_free_and_total(tmp_path: Path):
    stat = os.statvfs(tmp_path)
    total = stat.f_blocks * stat.f_frsize
    limit, (finding,) = limits.shared_memory(tmp_path, min_bytes=total * 2)
    assert limit.is_enough is False
    assert " free of " in finding.message
    assert "--shm-size" in finding.remedy


def test_shared_memory_that_is_full_is_to_be_emptied(tmp_path: Path):
    stat = os.statvfs(tmp_path)
    total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    if free == total:
        pytest.skip("this file system is empty")
    _, (finding,) = limits.shared_memory(tmp_path, min_bytes=total)
    assert "remove what is left" in finding.remedy


def test_shared_memory_that_is_enough_is_no_finding(tmp_path: Path):
    limit, findings = limits.shared_memory(tmp_path, min_bytes=1)
    assert (limit.is_enough, findings) == (True, [])


def test_shared_memory_that_is_not_there_is_unknown(tmp_path: Path):
    limit, (finding,) = limits.shared_memory(tmp_path / "nothing")
    assert (limit.value, limit.is_enough) == (None, None)
    assert "No such file" in finding.message


def test_few_open_files_are_a_finding_and_the_hard_limit_decides_the_remedy():
    limit, (finding,) = limits.open_files(1024, 1048576)
    assert (limit.value, limit.is_enough) == ("1,024", False)
    assert "ulimit -n 4096" in finding.remedy
    _, (finding,) = limits.open_files(1024, 2048)
    assert "hard limit" in finding.remedy
    assert limits.open_files(None, None)[1] == []
    assert limits.open_files(4096, 4096)[1] == []


def test_locked_memory_matters_beside_an_accelerator_only():
    assert limits.locked_memory(8 * 2**20, has_accelerator=False)[1] == []
    limit, (finding,) = limits.locked_memory(8 * 2**20, has_accelerator=True)
    assert limit.value == "8.0 MiB"
    assert "memlock=-1" in finding.remedy
    assert limits.locked_memory(None, has_accelerator=True)[1] == []


def test_a_deep_temporary_folder_is_a_finding():
    assert limits.socket_path(Path("/tmp"), 0)[1] == []
    limit, (finding,) = limits.socket_path(Path("/" + "d" * 150), 1000)
    assert limit.is_enough is False
    assert "TMPDIR" in finding.remedy


def test_a_socket_path_may_have_exactly_107_bytes():
    tail = len("/parity-1/000000000000/99999-99999.sock")
    longest = "/" + "d" * (107 - tail - 1)
    assert limits.socket_path(Path(longest), 1)[0].is_enough is True
    assert limits.socket_path(Path(f"{longest}d"), 1)[0].is_enough is False


def test_a_socket_of_the_longest_path_that_is_accepted_can_be_bound():
    tail = len("/parity-1/000000000000/99999-99999.sock")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # tmp_path may be too long already
        name = "d" * (107 - len(folder) - 1)
        assert limits.socket_path(Path(f"{folder}/{name[:-tail]}"), 1)[0].is_enough
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{folder}/{name}")


def test_more_threads_than_cores_are_a_finding():
    assert limits.threads(4, 64, None)[1] == []
    assert limits.threads(4, 64, 4)[1] == []
    limit, (finding,) = limits.threads(4, 64, 5)
    assert limit.value == "4 of 64 cores, OMP_NUM_THREADS=5"
    assert "OMP_NUM_THREADS=4" in finding.remedy


def test_this_machine_can_be_examined():
    found, _ = limits.examine(1, has_accelerator=True)
    assert [limit.name for limit in found] == [
        "shared memory",
        "open files",
        "locked memory",
        "socket path",
        "threads",
    ]


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (2**20, "1.0 MiB"), (64 * 2**20, "64.0 MiB"),
     (200 * 2**30, "200 GiB"), (3 * 2**50, "3072 TiB")],
)  # fmt: skip
def test_sizes_are_shown_in_a_unit_that_fits(size: int, shown: str):
    assert limits._size(size) == shown


def test_shared_memory_that_cannot_be_written_is_a_finding(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    limit, (finding,) = limits.shared_memory(tmp_path, min_bytes=1)
    assert limit.is_enough is False
    assert "can't be written" in finding.message
