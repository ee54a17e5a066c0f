"""A real disk without room, for one part of the run folder at a time.

What a run can't do without ends it in one sentence, and it goes on once there is room; what it
can do without is told and costs nothing else.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from runs.mortal import Ended, assert_clean, assert_finished, parity, words_of

from parity.observe.summary import Summary
from parity.observe.trackers.jsonl import read_rows

DONE, FAILED, NOTHING_TO_DO = 0, 1, 3
BLOCK = 4096


@pytest.fixture(scope="module")
def halfway(tiny_dir: Path, tasks_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stands at step 2, to be copied."""
    cwd = tmp_path_factory.mktemp("halfway")
    words = words_of(tiny_dir, tasks_path, "run", "steps=2")
    assert parity(*words, cwd=cwd).code == DONE
    return cwd / "runs" / "run"


@pytest.fixture
def run_dir(halfway: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(halfway, tmp_path / "runs" / "run"))


def resumed(run_dir: Path, *words: str) -> Ended:
    return parity("resume", str(run_dir), "steps=6", *words, cwd=run_dir.parent)


def one_sentence(ended: Ended) -> str:
    assert ended.code == FAILED, ended
    assert "Traceback" not in ended.said
    (line,) = [line for line in ended.said.splitlines() if line.startswith("parity: ")]
    assert "bug of Parity" not in line
    return line


@contextmanager
def on_a_full_disk(part: Path, *, room: int) -> Generator[Callable[[], None]]:
    """Put a file or folder on a disk of its own with so many bytes left; gives what makes room."""
    disk = part.parent.parent / f"disk-{part.name}"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a disk: {mounted.stderr.decode()}")
    try:
        if part.exists():
            shutil.move(part, disk / part.name)
        else:
            (disk / part.name).mkdir()
        part.symlink_to(disk / part.name)
        filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
        try:
            while os.write(filler, b"x" * BLOCK):
                pass
        except OSError:
            size = os.fstat(filler).st_size
            os.ftruncate(filler, max(0, (size - room) // BLOCK * BLOCK))
        finally:
            os.close(filler)
        yield (disk / "filler").unlink
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 16_384])
@pytest.mark.parametrize("part", ["ledger", "checkpoints", "model"])
def test_what_a_run_needs_ends_it_in_one_sentence_and_it_goes_on_once_there_is_room(
    run_dir: Path, part: str, room: int
) -> None:
    before = Summary.read(run_dir)
    with on_a_full_disk(run_dir / part, room=room) as make_room:
        said = one_sentence(resumed(run_dir))
        assert part in said
        assert "ree disk space" in said
        assert "anew" not in said
        summary = Summary.read(run_dir)
        assert summary.status == "failed" or summary == before
        make_room()
        assert_clean(run_dir)
        again = resumed(run_dir)
        assert again.code == DONE, again
        assert_finished(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["episodes", "metrics.jsonl"])
def test_what_a_run_can_do_without_is_told_and_costs_nothing_else(run_dir: Path, part: str) -> None:
    with on_a_full_disk(run_dir / part, room=0):
        ended = resumed(run_dir)
        assert ended.code == DONE, ended
        assert "No space left" in (run_dir / "log.txt").read_text()
        assert Summary.read(run_dir).status == "finished"
        assert_clean(run_dir)
        # What is there, is whole.
        assert [row["step"] for row in read_rows(run_dir)][:3] == [0, 1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("part", ["log.txt", "summary.json.partial"])
def test_a_file_of_the_run_that_can_not_be_written_is_one_sentence(
    run_dir: Path, part: str
) -> None:
    (run_dir / part).unlink(missing_ok=True)
    (run_dir / part).symlink_to("/dev/full")
    ended = resumed(run_dir, "display=plain")
    assert "Traceback" not in ended.said
    assert "bug of Parity" not in ended.said
    if part == "log.txt":
        assert ended.code == DONE
        assert ended.said.count("log.txt can't be written") == 1
    else:
        assert "No space left" in one_sentence(ended)
    (run_dir / part).unlink(missing_ok=True)
    assert resumed(run_dir).code == (NOTHING_TO_DO if part == "log.txt" else DONE)
    assert_finished(run_dir)
