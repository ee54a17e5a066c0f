"""A run's sockets are private, short, owned by the living, and gone afterwards."""

import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from parity.errors import TransferError
from parity.weights.host import endpoints
from parity.weights.host.endpoints import Endpoint, Lock, RunDirectory, is_held
from parity.weights.host.shared_memory import SharedBuffer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(endpoints, "_CLAIM_S", 0.05)


@pytest.fixture
def short():
    """A folder whose name leaves room for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_a_temporary_folder_of_150_characters_still_gives_a_short_private_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    deep = tmp_path / ("x" * (150 - len(str(tmp_path)) - 1))
    deep.mkdir()
    assert len(str(deep)) == 150
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    directory = RunDirectory.create(f"a very long run id {tmp_path} {'y' * 200}")
    endpoint = directory.claim(99999, 99999)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(endpoint.path))  # OSError where it is too long
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.path.parent.stat().st_mode & 0o777 == 0o700
    endpoint.release()
    directory.close()
    assert not directory.path.exists()


def test_two_runs_have_two_directories_and_one_run_id_cannot_live_twice(short: Path, quick):
    first, second = (RunDirectory.create(name, parent=short) for name in ("a", "b"))
    assert first.path != second.path
    with pytest.raises(TransferError, match=r"\.run belongs to a living process \(pid \d+\)"):
        RunDirectory.create("a", parent=short)
    first.close()
    RunDirectory.create("a", parent=short).close()
    second.close()
    assert list(short.iterdir()) == []


def test_an_endpoint_has_one_living_owner(short: Path, quick):
    with pytest.raises(TransferError, match=r"can't be used"):
        RunDirectory.join(short / "missing")
    directory = RunDirectory.create("a", parent=short)
    endpoint = directory.claim(0, 1)
    assert directory.is_alive("0-1")
    assert not directory.is_alive("1-0")
    with pytest.raises(TransferError, match=r"0-1\.lock belongs to a living process"):
        directory.claim(0, 1)
    endpoint.release()
    assert not directory.is_alive("0-1")
    directory.claim(0, 1).release()
    directory.close()


KILLED = """
import os, signal, socket, sys
from pathlib import Path
from parity.weights.host.endpoints import RunDirectory
directory = RunDirectory.create("killed", parent=Path(sys.argv[1]))
endpoint = directory.claim(0, 0)
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(endpoint.path))
print(directory.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_recognised_and_removed(short: Path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(short)], capture_output=True, text=True, check=False
    )
    left = Path(done.stdout.strip())
    assert {path.name for path in left.iterdir()} == {".run", "0-0.sock", "0-0.lock"}
    again = RunDirectory.create("killed", parent=short)  # the same run, resumed at once
    endpoint = again.claim(0, 0)
    assert not endpoint.path.exists()
    endpoint.release()
    again.close()
    left.mkdir(parents=True)
    left.parent.chmod(0o700)
    (left / "0-0.lock").touch()
    os.utime(left, (time.time() - 60, time.time() - 60))
    RunDirectory.create("another", parent=short).close()
    assert not left.exists()


def test_a_directory_with_a_living_member_is_left_alone(short: Path):
    directory = RunDirectory.create("driver died", parent=short)
    member = directory.claim(0, 0)
    directory._lock.release()  # as if the driver had died
    os.utime(directory.path, (time.time() - 60, time.time() - 60))
    other = RunDirectory.create("b", parent=short)
    assert member.path.parent.exists()
    member.release()
    os.utime(directory.path, (time.time() - 60, time.time() - 60))
    other.close()
    RunDirectory.create("c", parent=short).close()
    assert not directory.path.exists()


def test_a_living_socket_and_a_foreign_file_are_never_touched(short: Path):
    path = short / "0-0.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with pytest.raises(TransferError, match=r"0-0\.sock is a living socket"):
            Endpoint(short, "0-0")
        assert path.exists()
    Endpoint(short, "0-0").release()  # nobody listens any more
    path.write_text("not a socket")
    with pytest.raises(TransferError, match=r"0-0\.sock isn't a socket of this user"):
        Endpoint(short, "0-0")
    assert path.read_text() == "not a socket"
    assert not is_held(short / "0-0.lock")


def test_a_directory_that_others_could_change_is_refused(short: Path):
    name = f"parity-{os.getuid()}"
    (short / name).mkdir(mode=0o777)
    (short / name).chmod(0o777)
    with pytest.raises(TransferError, match="open to other users"):
        RunDirectory.create("a", parent=short)
    (short / name).chmod(0o700)
    (short / name / hashlib.sha256(b"a").hexdigest()[:12]).symlink_to(short)
    with pytest.raises(TransferError, match="isn't a folder"):
        RunDirectory.create("a", parent=short)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_directory_of_another_user_is_refused_and_named(short: Path):
    theirs = short / f"parity-{os.getuid()}"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    with pytest.raises(TransferError, match=rf"{theirs} belongs to user 12345"):
        RunDirectory.create("a", parent=short)
    assert theirs.exists()


def test_a_lock_ends_with_its_file(short: Path, quick):
    lock = Lock(short / "x.lock")
    assert is_held(lock.path)
    lock.release()
    lock.release()
    assert not lock.path.exists()


def test_shared_memory_is_seen_by_both_and_leaves_nothing(tmp_path: Path):
    made = SharedBuffer.create(tmp_path, "parity-0-test", 4096)
    seen = SharedBuffer.attach(made.path, 4096)
    made.unlink()
    made.tensor[7] = 42
    assert seen.tensor[7] == 42
    assert list(tmp_path.iterdir()) == []
    seen.close()
    made.close()
    made.close()


def test_shared_memory_of_a_dead_maker_is_removed_and_of_a_living_one_is_not(tmp_path: Path):
    living = SharedBuffer.create(tmp_path, "parity-0-one", 4096)
    left = tmp_path / "parity-0-two-dead"
    left.write_bytes(b"x")
    SharedBuffer.create(tmp_path, "parity-0-two", 4096).unlink()
    assert living.path.exists()
    assert not left.exists()


def test_shared_memory_of_another_size_is_refused(tmp_path: Path):
    made = SharedBuffer.create(tmp_path, "parity-0-test", 4096)
    with pytest.raises(TransferError, match="has 4096 bytes"):
        SharedBuffer.attach(made.path, 8192)
    with pytest.raises(TransferError, match="can't be opened"):
        SharedBuffer.attach(tmp_path / "other", 4096)
