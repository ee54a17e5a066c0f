"""What a test may do to the machine, to us and to our log, and that nothing of it works."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from parity.ci.run import execute as executing
from parity.ci.run.execute import Command, Ending, StartError, execute
from parity.ci.run.output import Fence, Live, Output, fenced
from parity.ci.run.processes import MARKER, Tree, adopting_orphans, describe, kill_marked
from parity.ci.text import harmless

# Each stops by itself after a while, in case that we don't stop it.
WANDERER = """
import os, time
end = time.monotonic() + 30
if os.fork():
    time.sleep(0.2)
    os._exit(0)
while time.monotonic() < end and not os.path.exists("stop"):
    if os.fork():
        os._exit(0)
    os.setsid()
"""
BOMB = """
import os, time
for depth in range(7):
    os.fork()
    if depth % 3 == 0:
        os.setsid() if os.getpid() != os.getsid(0) else None
open(f"born-{os.getpid()}", "w").close()
time.sleep(30)
"""


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    with adopting_orphans() as adopts:
        assert adopts
        yield


def run(tmp_path: Path, source: str, *, timeout_s: float = 20.0) -> tuple[Ending, str]:
    (tmp_path / "script.py").write_text(source)
    live = io.StringIO()
    output = Output(tmp_path / "out" / "output.log", live)
    argv = [sys.executable, "-S", "script.py"]
    command = Command(argv, tmp_path, {}, [], f"hostile.{time.monotonic_ns()}", timeout_s)
    try:
        return execute(command, output), live.getvalue()
    finally:
        output.close()


def test_a_process_that_is_always_another_one_is_caught(tmp_path: Path) -> None:
    try:
        ending, _ = run(tmp_path, WANDERER)
        assert ending.survivors == ()
        assert ending.exit_code == 0
        assert not psutil.Process().children()
    finally:
        (tmp_path / "stop").touch()


def test_a_bomb_of_processes_in_many_sessions_leaves_none(tmp_path: Path) -> None:
    ending, _ = run(tmp_path, BOMB, timeout_s=1.5)
    assert ending.is_timeout
    assert ending.survivors == ()
    born = [int(path.name[5:]) for path in tmp_path.glob("born-*")]
    assert len(born) > 64
    assert not [pid for pid in born if psutil.pid_exists(pid)]


def test_a_test_that_kills_its_group_is_told_as_killed(tmp_path: Path) -> None:
    ending, _ = run(tmp_path, "import os, signal\nos.killpg(0, signal.SIGKILL)")
    assert (ending.exit_code, ending.signal) == (None, signal.SIGKILL)


def test_hundreds_of_megabytes_of_output_are_read_to_the_end_and_kept_in_part(
    tmp_path: Path,
) -> None:
    source = "import os\nblock = b'x' * 65535 + b'\\n'\nfor _ in range(1100): os.write(1, block)\n"
    ending, live = run(tmp_path, source, timeout_s=60)
    assert ending.exit_code == 0
    assert len(live) < 2 * 1024**2
    assert (tmp_path / "out" / "output.log").stat().st_size < 65 * 1024**2


def test_what_cannot_be_started_is_told_apart_from_a_disk_that_is_full(tmp_path: Path) -> None:
    output = Output(tmp_path / "output.log", io.StringIO())
    for argv in (["/nowhere/python"], [sys.executable, "nul\0byte"]):
        with pytest.raises(StartError, match="can't be started"):
            execute(Command(argv, tmp_path, {}, [], "hostile.start", 5.0), output)
    output.close()


def test_an_interruption_right_after_the_start_kills_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(command: Command) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command.argv, start_new_session=True))
        raise KeyboardInterrupt

    monkeypatch.setattr(executing, "_start", start)
    output = Output(tmp_path / "output.log", io.StringIO())
    with pytest.raises(KeyboardInterrupt):
        execute(Command(["sleep", "600"], tmp_path, {}, [], "hostile.early", 5.0), output)
    assert started[0].wait(5) is not None
    assert not psutil.Process().children()


def test_a_full_disk_ends_the_log_and_no_test() -> None:
    live = io.StringIO()
    output = Output(Path("/dev/full"), live)
    for _ in range(3):
        output.feed(b"a line\n")
    output.close()
    assert live.getvalue().count("a line\n") == 3
    assert live.getvalue().count("full ends early (No space left on device)") == 1
    assert output.tail == "a line\n" * 3


def test_a_reader_that_went_away_and_letters_it_cannot_show_stop_nothing() -> None:
    read, write = os.pipe()
    gone = Live(os.fdopen(write, "w"))
    os.close(read)
    for _ in range(3):
        gone.write("nobody listens\n")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Live(ascii_only).write("\u00e4 \udcff\n")
    assert ascii_only.buffer.getvalue() == b"\\xe4 \\udcff\n"  # pyright: ignore


def test_the_name_of_a_leftover_is_one_harmless_line(tmp_path: Path) -> None:
    hostile = b"\xff\n::add-mask::x\r##[error]y\x1b[0m"
    words = [sys.executable, "-S", "-c", "import time; time.sleep(600)", hostile]
    process = subprocess.Popen(words)
    try:
        deadline = time.monotonic() + 10
        while "add-mask" not in (text := describe(psutil.Process(process.pid))):
            assert time.monotonic() < deadline
        text.encode("utf-8")
        assert text.isprintable()
        assert "::" not in text
        assert "##[" not in text
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize("hostile", ["\r::set-output name=x::y", "a\n::x::", "##[command]x", "\0"])
def test_no_text_of_a_test_commands_the_service(hostile: str) -> None:
    shown = harmless(f"tests/test_x.py: fail: {hostile}")
    assert shown.isprintable()
    assert "::" not in shown
    assert "##[" not in shown
    lines = fenced(f"    {hostile}", groups=True).splitlines()
    assert lines[0].startswith("::stop-commands::")
    assert lines[-1] == f"::{lines[0].removeprefix('::stop-commands::')}::"


def test_two_fences_never_share_their_token() -> None:
    live = io.StringIO()
    for _ in range(2):
        with Fence(live, "a test", groups=True):
            live.write("::endgroup::\n")
    tokens = [line for line in live.getvalue().splitlines() if "stop-commands" in line]
    assert len(set(tokens)) == 2


def test_the_wall_clock_may_jump_and_no_process_is_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = subprocess.Popen(["sleep", "600"])
    try:
        tree = Tree("hostile.clock")
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 86400)
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: 1.0)
        assert before.pid not in [member.pid for member in tree.members()]
    finally:
        before.kill()
        before.wait(10)


def test_a_marker_must_be_whole_to_be_a_beginning() -> None:
    environment = {**os.environ, MARKER: "live-1-0123456789abcdef.x.1"}
    left = subprocess.Popen(["sleep", "600"], env=environment)
    try:
        assert kill_marked("other-1-0123456789abcdef") == []
        assert left.poll() is None
    finally:
        left.kill()
        left.wait(10)
