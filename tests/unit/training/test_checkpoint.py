import json
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parity.errors import CheckpointError
from parity.training import checkpoint as module
from parity.training.checkpoint import MARKER, CheckpointStore


def content(text="weights"):
    def write(folder: Path) -> None:
        (folder / "model.bin").write_text(text)
        (folder / "trainer").mkdir()
        (folder / "trainer" / "optimizer.bin").write_text("moments")

    return write


def steps_of(store):
    return [checkpoint.step for checkpoint in store.complete()]


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_checkpoint_comes_back_with_its_state(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.newest() is None
    assert store.complete() == []
    path = store.save(12, content(), {"ledger": 7, "seed": [1, {"a": None}]})
    assert path.name == "step_00000012"
    newest = store.newest()
    assert (newest.path, newest.step) == (path, 12)
    assert newest.state == {"ledger": 7, "seed": [1, {"a": None}]}
    marker = json.loads((path / MARKER).read_text())
    assert marker["files"].keys() == {"model.bin", "trainer/optimizer.bin"}
    assert marker["files"]["model.bin"][0] == len("weights")


def test_order_is_by_number_even_past_the_padding(tmp_path):
    store = CheckpointStore(tmp_path, keep=10)
    for step in (10, 9, 100_000_000, 2):
        store.save(step, content(), {})
    assert steps_of(store) == [2, 9, 10, 100_000_000]
    assert store.newest().step == 100_000_000


def test_short_folder_names_are_ordered_by_number_too(tmp_path):
    store = CheckpointStore(tmp_path, keep=10)
    for step in (2, 9, 10):
        store.save(step, content(), {}).rename(tmp_path / f"step_{step}")
    assert steps_of(store) == [2, 9, 10]
    assert store.newest().step == 10


def test_only_the_newest_stay_and_they_are_counted_on_the_disk(tmp_path):
    for step in (1, 2, 3):
        CheckpointStore(tmp_path, keep=1).save(step, content(), {})  # each time a new process
        assert names_in(tmp_path) == [f"step_{step:08d}"]
    store = CheckpointStore(tmp_path, keep=2)
    store.save(4, content(), {})
    assert steps_of(store) == [3, 4]


def test_what_was_just_saved_is_never_pruned(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(10, content(), {})
    store.save(6, content(), {})  # a run that went on from before step 6
    assert steps_of(store) == [6, 10]
    store.save(7, content(), {})
    assert steps_of(store) == [7, 10]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_writer_that_raises_half_way_leaves_the_old_one_and_no_trace(tmp_path, error):
    store = CheckpointStore(tmp_path, keep=1)
    old = store.save(1, content(), {})

    def write(folder: Path) -> None:
        content()(folder)
        raise error

    for step in (2, 1):
        with pytest.raises(type(error)):
            store.save(step, write, {})
        assert store.newest().path == old
        assert names_in(tmp_path) == ["step_00000001"]


def test_a_full_disk_is_one_sentence_and_leaves_the_old_one(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, content(), {})

    def write(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"step 2 can't be written.*No space left"):
        store.save(2, write, {})
    assert steps_of(store) == [1]


def test_a_failure_while_sealing_leaves_the_old_one(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, content(), {})

    def refuse(path: Path) -> None:
        if path.name == MARKER:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "_sync", refuse)
    with pytest.raises(CheckpointError, match="Input/output error"):
        store.save(2, content(), {})
    assert names_in(tmp_path) == ["step_00000001"]
    assert store.newest().step == 1


def test_the_old_one_is_there_until_the_new_one_is_complete(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, content(), {})

    def write(folder: Path) -> None:
        content()(folder)
        assert store.newest().step == 1
        assert not (folder / MARKER).exists()

    store.save(2, write, {})
    assert steps_of(store) == [2]


def test_leftovers_of_a_killed_run_are_ignored_and_removed_at_the_next_save(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(1, content(), {})
    for name in (".tmp_step_00000002", ".tmp_step_00000003"):
        shutil.copytree(tmp_path / "step_00000001", tmp_path / name)
    (tmp_path / ".tmp_step_00000003" / MARKER).unlink()
    assert steps_of(store) == [1]
    assert store.newest().step == 1
    store.save(4, content(), {})
    assert names_in(tmp_path) == ["step_00000001", "step_00000004"]


def test_saving_a_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(3, content("first"), {"take": 1})
    path = store.save(3, content("second"), {"take": 2})
    assert (path / "model.bin").read_text() == "second"
    assert store.newest().state == {"take": 2}
    assert names_in(tmp_path) == ["step_00000003"]


def test_a_kill_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    path = store.save(3, content(), {"take": 1})
    path.rename(tmp_path / ".old_step_00000003")
    assert store.newest().state == {"take": 1}
    assert steps_of(store) == [3]
    with pytest.raises(ZeroDivisionError):
        store.save(4, lambda folder: 1 / 0, {})
    assert names_in(tmp_path) == ["step_00000003"]


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from parity.training.checkpoint import CheckpointStore

left = int(sys.argv[2])

def counted(function):
    def call(*args, **kwargs):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*args, **kwargs)
    return call

def write(folder):
    (folder / "model.bin").write_text("weights")
    (folder / "trainer").mkdir()
    (folder / "trainer" / "optimizer.bin").write_text("moments")

Path.rename, Path.mkdir, Path.write_text = map(counted, (Path.rename, Path.mkdir, Path.write_text))
os.fsync, os.unlink, os.rmdir = map(counted, (os.fsync, os.unlink, os.rmdir))
CheckpointStore(Path(sys.argv[1]), keep=1).save(int(sys.argv[3]), write, {"of": int(sys.argv[3])})
"""


@pytest.mark.parametrize("step", [1, 2], ids=["replacing", "following"])
def test_a_kill_at_any_point_leaves_a_checkpoint_that_loads(tmp_path, step):
    store = CheckpointStore(tmp_path, keep=1)
    for kill_point in range(100):
        shutil.rmtree(tmp_path)
        store.save(1, content("old"), {"of": 0})
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(kill_point), str(step)]
        status = subprocess.run(command, check=False).returncode
        assert store.newest().state in ({"of": 0}, {"of": step})
        store.save(3, content(), {"of": 3})
        assert names_in(tmp_path) == ["step_00000003"]
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert kill_point > 12
    assert status == 0


def damage_missing(path):
    (path / "trainer" / "optimizer.bin").unlink()


def damage_truncated(path):
    (path / "model.bin").write_text("wei")


def damage_changed(path):
    (path / "model.bin").write_text("wEights")


def damage_no_marker(path):
    (path / MARKER).unlink()


def damage_half_marker(path):
    text = (path / MARKER).read_text()
    (path / MARKER).write_text(text[: len(text) // 2])


def damage_odd_marker(path):
    (path / MARKER).write_text('{"step": 2, "state": {}, "files": {"model.bin": 5}}')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_missing, "trainer/optimizer.bin is missing"),
        (damage_truncated, "model.bin has 3 bytes instead of 7"),
        (damage_changed, "model.bin has other contents"),
        (damage_no_marker, "COMPLETE.json is missing"),
        (damage_half_marker, "COMPLETE.json can't be read"),
        (damage_odd_marker, "COMPLETE.json can't be read"),
    ],
)
def test_a_damaged_newest_is_passed_over_with_a_warning(tmp_path, caplog, damage, reason):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(1, content(), {})
    damage(store.save(2, content(), {}))
    with caplog.at_level(logging.WARNING):
        assert store.newest().step == 1
    assert reason in caplog.text
    store.save(2, content(), {})  # the resumed run gets there again
    assert store.newest().step == 2


def test_a_state_that_json_cannot_hold_is_refused_before_anything_is_published(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    with pytest.raises((TypeError, ValueError)):
        store.save(1, content(), {"loss": float("nan")})
    assert names_in(tmp_path) == []
