import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from unit.rewards.answers import answer

from parity.rewards.process import wire
from parity.types import Scored

COMMAND = [sys.executable, "-m", "parity.rewards.worker"]


def spoken(*lines: bytes) -> list[bytes]:
    """What a worker answers, a line for a line; it must end when its input does."""
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, bufsize=0) as worker:
        assert worker.stdin and worker.stdout
        worker.stdin.write(b"".join(lines))
        answers = [worker.stdout.readline() for _ in lines]
        worker.stdin.close()
        # By itself, or by its warden, which sees the same end of the pipe.
        assert worker.wait(timeout=30) in (0, -signal.SIGKILL)
        assert worker.stdout.read() == b""
    return answers


def setup(section: dict, parent_pid: int | None = None) -> bytes:
    parent_pid = os.getpid() if parent_pid is None else parent_pid
    return wire.encode_setup(wire.Setup(section, parent_pid, (str(Path.cwd()),), None, None))


def test_worker_ends_when_its_input_does():
    assert spoken() == []
    assert [json.loads(line) for line in spoken(setup({"name": "exact"}))] == [{"ready": True}]


def test_worker_answers_line_by_line():
    lines = [wire.encode_answer(answer("42")), wire.encode_answer(answer("\ud800"))]
    _, *results = spoken(setup({"name": "exact"}), *lines)
    assert [wire.decode_result(line) for line in results] == [Scored(1.0), Scored(0.0)]


def test_worker_says_why_it_cannot_build_the_reward():
    (line,) = spoken(setup({"name": "sum", "parts": []}))
    refused = wire.decode_ready(line)
    assert refused is not None
    assert refused.kind == "ConfigError"
    assert "parts is empty" in refused.message


def test_worker_of_a_driver_that_is_gone_ends_without_grading():
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, bufsize=0) as worker:
        assert worker.stdin and worker.stdout
        worker.stdin.write(setup({"name": "exact"}, parent_pid=os.getpid() + 1))
        assert worker.stdout.read() == b""
        assert worker.wait(timeout=30) == 1
