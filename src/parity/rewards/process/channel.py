"""Lines to and from a process over its pipes, with deadlines; stderr is kept as a short tail.

Used by `child.py`, from one thread. Nothing here waits beyond its deadline, whatever the
process does: it may not read, print without end, or die half-way through a line. The end of
its stdout counts as its death.
"""

import os
import selectors
import time
from typing import IO

from parity.rewards.process.wire import MAX_RESULT_BYTES

_CHUNK_BYTES = 65536
_TAIL_BYTES = 8192
_MAX_LINE_BYTES = MAX_RESULT_BYTES  # more is noise on our pipe
_LAST_READS = 64  # what a process left behind: at most this many chunks of each pipe


class LateError(Exception):
    """The deadline passed before a line came."""


class ClosedError(Exception):
    """The process ended before it wrote a line."""


class Channel:
    """The three pipes of a process."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()
        self._tail = bytearray()
        self._is_closed = False
        self._selector = selectors.DefaultSelector()
        for pipe in (stdin, stdout, stderr):
            os.set_blocking(pipe.fileno(), False)
        for pipe in (stdout, stderr):
            self._selector.register(pipe, selectors.EVENT_READ)

    @property
    def stderr(self) -> str:
        """The end of what the process wrote to stderr."""
        return self._tail.decode("utf-8", errors="backslashreplace").strip()

    def send(self, data: bytes) -> None:
        """Queue `data`; it is written while `line` waits."""
        self._outgoing = memoryview(bytes(self._outgoing) + data)
        if self._stdin not in self._selector.get_map():
            self._selector.register(self._stdin, selectors.EVENT_WRITE)

    def line(self, deadline: float) -> bytes:
        """The next line, with its newline; `deadline` is a time of `time.monotonic`.

        Raises LateError, ClosedError, or ValueError for a line without end.
        """
        while (line := self._take_line()) is None:
            if self._is_closed:
                raise ClosedError
            remaining_s = deadline - time.monotonic()
            self._pump(max(0.0, remaining_s))
            # This thread may be what was late: only a line that isn't there even now is late.
            if remaining_s <= 0 and b"\n" not in self._incoming and not self._is_closed:
                raise LateError
        return line

    def is_closed(self) -> bool:
        """Whether the process has ended; doesn't wait."""
        if not self._is_closed:
            self._pump(0.0)
        return self._is_closed

    def close(self) -> None:
        """Read what the process left, then close the pipes."""
        if not self._stdout.closed:
            self._is_closed = True
            for _ in range(_LAST_READS):
                if not self._stderr_is_ready():
                    break
                self._read(self._stderr)
            self._selector.close()
            for pipe in (self._stdin, self._stdout, self._stderr):
                pipe.close()

    def _take_line(self) -> bytes | None:
        end = self._incoming.find(b"\n")
        if end < 0:
            if len(self._incoming) > _MAX_LINE_BYTES:
                raise ValueError(f"a line of more than {_MAX_LINE_BYTES} bytes")
            return None
        line = bytes(self._incoming[: end + 1])
        del self._incoming[: end + 1]
        return line

    def _pump(self, timeout_s: float) -> None:
        """Wait for any pipe, then move what can be moved without waiting."""
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._stdin:
                self._write()
            elif key.fileobj is self._stdout:
                self._is_closed = not self._read(self._stdout)
            else:
                self._read(self._stderr)

    def _write(self) -> None:
        try:
            written = os.write(self._stdin.fileno(), self._outgoing[:_CHUNK_BYTES])
            self._outgoing = self._outgoing[written:]
        except BlockingIOError:
            return
        except BrokenPipeError:  # stdout tells of the death, after what was written before it
            self._outgoing = memoryview(b"")
        if not self._outgoing:
            self._selector.unregister(self._stdin)

    def _read(self, pipe: IO[bytes]) -> bool:
        """Take one chunk; False at the end of the pipe."""
        try:
            data = os.read(pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not data:
            self._selector.unregister(pipe)
            return False
        if pipe is self._stdout:
            self._incoming += data
        else:
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
        return True

    def _stderr_is_ready(self) -> bool:
        return any(key.fileobj is self._stderr for key, _ in self._selector.select(0.0))
