"""The page: what it says, and that no part of it can cost the others."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parity.supervise import page
from parity.supervise.judge import Overdue
from parity.supervise.waits import Waits, waiting

OVERDUE = Overdue("driver", "the trainer's step 3", 12.0, 10.0, "supervise.step_timeout_s", "Look.")


def scene(waits: Waits, **more) -> page.Scene:
    return page.Scene(reason=OVERDUE.sentence(), overdue=OVERDUE, waits=waits, **more)


def test_the_page_says_who_waits_what_happened_last_and_what_to_try() -> None:
    waits = Waits()
    wait = waiting("driver", "the trainer's step 3", deadline_s=10.0, limit="supervise.step_s")
    wait.register = waits
    waits.note("trainer", "took up a call")
    with wait:
        text = page.compose(scene(waits, figures=lambda: {"optimizer steps": 2}, run_name="mine"))
    first = text.splitlines()[0]
    assert first.startswith("driver waited 12.0 s for the trainer's step 3; at most 10 s are")
    assert "driver waits for the trainer's step 3 since 0.0 s (allowed: 10 s" in text
    assert "trainer: took up a call, 0.0 s ago" in text
    assert "optimizer steps: 2" in text
    assert "raise supervise.step_timeout_s" in text
    assert "`parity resume mine`" in text
    assert "test_page.py" in text.partition("Threads of this process")[2]
    assert "Threads of this process" not in page.summary(text)


def test_a_part_that_cannot_be_told_does_not_cost_the_others() -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("half closed")

    text = page.compose(scene(Waits(), figures=broken))
    assert "can't be told: RuntimeError: half closed" in text
    assert "Threads of this process" in text


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    yield process
    process.kill()
    process.communicate()


def test_child_processes_are_shown_with_their_command_and_state(
    child: "subprocess.Popen[bytes]",
) -> None:
    text = page.compose(scene(Waits())).partition("Child processes")[2]
    mine = text.partition(f"Process {child.pid}: ")[2].partition("\nProcess ")[0]
    assert "sys.stdin.read()" in mine
    assert "State: " in mine


def test_the_dead_are_counted_and_hide_nobody(child: "subprocess.Popen[bytes]") -> None:
    dead = [subprocess.Popen(["true"]) for _ in range(70)]
    for process in dead:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, but not collected
    late = subprocess.Popen(["sleep", "60"])
    try:
        text = page.compose(scene(Waits())).partition("Child processes")[2]
    finally:
        late.kill()
        for process in (late, *dead):
            process.wait()
    assert f"Process {child.pid}: " in text
    assert f"Process {late.pid}: sleep 60" in text
    assert re.search(r"^Dead, not collected .*: 7\d \(", text, re.MULTILINE)
    assert "Process " + str(dead[0].pid) not in text


def test_py_spy_is_used_where_it_is_installed_and_given_up_where_it_fails(
    child: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "stack of $4"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert f"  stack of {child.pid}" in page.compose(scene(Waits()))
    program.write_text("#!/bin/sh\nexit 1\n")
    assert "wchan: " in page.compose(scene(Waits())).partition(f"Process {child.pid}")[2]


def test_threads_have_names_and_what_the_kernel_says_of_them() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="a patient one")
    thread.start()
    while ") S " not in Path(f"/proc/self/task/{thread.native_id}/stat").read_text():
        time.sleep(0.01)
    text = page.compose(scene(Waits()))
    go_on.set()
    thread.join()
    (line,) = [line for line in text.splitlines() if line.startswith("Thread a patient one")]
    assert f"id {thread.native_id}, S (sleeping)" in line


def test_the_page_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    assert page.write("all of it\n", tmp_path).read_text() == "all of it\n"
    assert [path.name for path in tmp_path.iterdir()] == ["hang.txt"]
    with pytest.raises(OSError, match="No such file"):
        page.write("nowhere", tmp_path / "gone")
