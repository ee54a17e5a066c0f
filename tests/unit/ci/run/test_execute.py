"""Real processes: what they print and leave behind, and that nothing of them lives on."""

import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from parity.ci.run.execute import Command, Ending, execute
from parity.ci.run.output import Output
from parity.ci.run.processes import MARKER, adopting_orphans, kill_marked

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({pid_path!r}, "w").write(str(os.getpid()))
        {clean}
        time.sleep(600)
    os._exit(0)
time.sleep(0.3)
print("parent done", flush=True)
"""


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    with adopting_orphans() as adopts:
        assert adopts
        yield


def run(
    tmp_path: Path, source: str, *, timeout_s: float = 20.0, marker: str = "t.1"
) -> tuple[Ending, str]:
    path = tmp_path / "script.py"
    path.write_text(source)
    live = io.StringIO()
    output = Output(tmp_path / "out" / "output.log", live)
    command = Command(
        argv=[sys.executable, "script.py"],
        working_dir=tmp_path,
        variables={},
        without=["SECRET"],
        marker=marker,
        timeout_s=timeout_s,
    )
    try:
        return execute(command, output), live.getvalue() + output.tail
    finally:
        output.close()


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_output_of_both_streams_and_the_exit_code_are_told(tmp_path: Path) -> None:
    ending, text = run(tmp_path, "import sys; print('a'); print('b', file=sys.stderr); sys.exit(7)")
    assert (ending.exit_code, ending.signal, ending.is_timeout) == (7, None, False)
    assert "a\n" in text
    assert "b\n" in text


def test_a_signal_is_told_as_one(tmp_path: Path) -> None:
    ending, _ = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (ending.exit_code, ending.signal) == (None, 11)


def test_a_hang_ends_at_its_deadline_and_says_where_it_hung(tmp_path: Path) -> None:
    source = "import time\ndef stuck_here():\n    time.sleep(600)\nstuck_here()"
    begun = time.monotonic()
    ending, text = run(tmp_path, source, timeout_s=1.0)
    assert ending.is_timeout
    assert time.monotonic() - begun < 15
    assert "stuck_here" in text


@pytest.mark.parametrize("clean", ["pass", "os.execve('/bin/sleep', ['sleep', '600'], {})"])
def test_a_daemon_that_holds_the_pipe_delays_nothing_and_is_killed(
    tmp_path: Path, clean: str
) -> None:
    pid_path = tmp_path / "pid"
    begun = time.monotonic()
    ending, text = run(tmp_path, DAEMON.format(pid_path=str(pid_path), clean=clean))
    pid = int(pid_path.read_text())
    assert time.monotonic() - begun < 10
    assert ending.exit_code == 0
    assert "parent done" in text
    assert not lives(pid)
    assert [f"pid {pid} " in leftover for leftover in ending.leftovers] == [True]
    assert ending.survivors == ()


def test_a_hang_with_children_in_other_sessions_leaves_nothing(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys, time\n"
        "for _ in range(3):\n"
        "    p = subprocess.Popen(['sleep', '601'], start_new_session=True)\n"
        "    open('pids', 'a').write(f'{p.pid}\\n')\n"
        "time.sleep(600)"
    )
    ending, _ = run(tmp_path, source, timeout_s=1.5)
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert ending.is_timeout
    assert len(pids) == 3
    assert not any(map(lives, pids))


def test_a_test_that_ignores_sigterm_and_sigabrt_is_killed(tmp_path: Path) -> None:
    source = (
        "import signal, time\n"
        "signal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "import faulthandler; faulthandler.disable()\n"
        "signal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
        "while True: time.sleep(1)"
    )
    ending, _ = run(tmp_path, source, timeout_s=1.0)
    assert ending.is_timeout
    assert not psutil.Process().children()


def test_children_of_others_are_left_alone(tmp_path: Path) -> None:
    other = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run(tmp_path, "print(1)")
        assert other.status() != psutil.STATUS_ZOMBIE
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)


def test_a_closed_pipe_isn_t_the_end_of_the_test(tmp_path: Path) -> None:
    source = "import os, time, sys\nos.close(1); os.close(2)\ntime.sleep(0.5)\nos._exit(3)"
    ending, _ = run(tmp_path, source)
    assert ending.exit_code == 3
    assert ending.time_s >= 0.5


def test_secrets_of_ours_are_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    _, text = run(tmp_path, "import os; print(os.environ.get('SECRET'))")
    assert "None" in text
    assert "s3cret" not in text


def test_endless_output_is_cut_in_the_log_and_live_but_its_end_is_kept(tmp_path: Path) -> None:
    live = io.StringIO()
    output = Output(tmp_path / "output.log", live, live_bytes=1000, log_bytes=5000)
    for number in range(5000):
        output.feed(f"line {number}\n".encode())
    output.close()
    log = (tmp_path / "output.log").read_text()
    assert log.startswith("line 0\n")
    assert log.endswith("line 4999\n")
    assert "left out" in log
    assert len(live.getvalue()) < 10_000
    assert live.getvalue().endswith("line 4999\n")
    assert "shown no further" in live.getvalue()


def test_a_character_that_two_reads_cut_apart_is_shown_whole(tmp_path: Path) -> None:
    live = io.StringIO()
    output = Output(tmp_path / "output.log", live)
    data = "\u00e4".encode()
    output.feed(data[:1])
    output.feed(data[1:])
    output.close()
    assert live.getvalue() == "\u00e4\n"


def test_what_a_dead_job_has_left_is_found_by_its_marker() -> None:
    env = {**os.environ, MARKER: "dead-job.x.1"}
    left = psutil.Popen(["sleep", "600"], env=env, start_new_session=True)
    while left.name() != "sleep":
        time.sleep(0.01)
    assert [f"pid {left.pid} " in text for text in kill_marked("dead-job.")] == [True]
    left.wait(10)
