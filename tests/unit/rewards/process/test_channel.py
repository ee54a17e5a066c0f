import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from parity.rewards.process.channel import Channel, ClosedError, LateError


@contextmanager
def channel_to(code: str):
    """A channel to a Python process that runs `code`."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        channel = Channel(process.stdin, process.stdout, process.stderr)
        try:
            yield channel
        finally:
            process.kill()
            channel.close()


def soon() -> float:
    return time.monotonic() + 30.0


def test_lines_come_one_by_one_and_then_the_end():
    with channel_to("print('a\\nb\\nno end', end='')") as channel:
        assert channel.line(soon()) == b"a\n"
        assert channel.line(soon()) == b"b\n"
        with pytest.raises(ClosedError):
            channel.line(soon())
        assert channel.is_closed()


def test_more_than_a_pipe_holds_is_sent_while_the_other_side_writes_too():
    code = (
        "import sys\n"
        "for line in sys.stdin: print(len(line) * 'x'); print('e' * 99999, file=sys.stderr)"
    )
    with channel_to(code) as channel:
        for _ in range(3):
            channel.send(b"y" * 300_000 + b"\n")
        for _ in range(3):
            assert len(channel.line(soon())) == 300_002


def test_silence_is_late_and_noise_on_stderr_does_not_prolong_it():
    with channel_to(
        "import sys\nprint('go')\nwhile True: print('noise', file=sys.stderr)"
    ) as channel:
        channel.line(soon())
        begin = time.monotonic()
        with pytest.raises(LateError):
            channel.line(begin + 0.3)
        assert 0.3 <= time.monotonic() - begin < 5.0
        assert "noise" in channel.stderr
        assert len(channel.stderr) <= 8192


def test_line_that_is_there_is_not_late_although_the_deadline_has_passed():
    with channel_to("import os; os.write(1, b'here\\n'); input()") as channel:
        assert channel._selector.select(30.0)  # it is in the pipe, and nobody has read it
        assert channel.line(time.monotonic() - 100.0) == b"here\n"


def test_line_without_end_is_refused():
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with channel_to(code) as channel, pytest.raises(ValueError, match="a line of more than"):
        channel.line(soon())


def test_process_that_reads_nothing_any_more_is_no_error_of_sending():
    with channel_to("import os; os.close(0); print('bye')") as channel:
        assert channel.line(soon()) == b"bye\n"
        channel.send(b"z" * 1_000_000)
        with pytest.raises(ClosedError):
            channel.line(soon())
