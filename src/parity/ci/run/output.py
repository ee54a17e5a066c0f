"""What a test prints: shown live, kept in a log file, each to a limit, with the end kept always.

Used by `execute.py`. A CI service obeys commands in its log (`::set-output ...`), so the lines
of a test are fenced by `::stop-commands::` with a token that the test can't know.
"""

import codecs
import secrets
from pathlib import Path
from typing import Protocol, TextIO

TAIL_BYTES = 64 * 1024  # what classification and reports look at
LIVE_BYTES = 1024**2
LOG_BYTES = 64 * 1024**2
_SHOWN_END_BYTES = 8 * 1024


class Shows(Protocol):
    """Where lines are shown."""

    def write(self, text: str, /) -> int:
        """Show a text."""
        ...

    def flush(self) -> None:
        """Show it now."""
        ...


class Live:
    """A text stream that may end or fill up: what can't be shown is lost, and no test with it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_open = True

    def write(self, text: str) -> int:
        """Show the text, in the letters that the stream knows."""
        if self._is_open:
            encoding = self._stream.encoding or "utf-8"
            try:
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                self._stream.flush()
            except (OSError, ValueError):  # closed, a reader that went away, a full disk
                self._is_open = False
        return len(text)

    def flush(self) -> None:
        """Every write does."""


class Output:
    """The output of one attempt."""

    def __init__(
        self,
        log_path: Path,
        live: Shows,
        *,
        live_bytes: int = LIVE_BYTES,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = log_path.open("wb", buffering=0)
        self.problem: str | None = None  # why the log isn't whole
        self._live = live
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._live_left, self._log_left = live_bytes, log_bytes
        self._tail = bytearray()
        self._size_bytes = 0
        self._ends_line = True

    @property
    def tail(self) -> str:
        """The end of the output, TAIL_BYTES at most."""
        return self._tail.decode("utf-8", errors="replace")

    def feed(self, data: bytes) -> None:
        """Take what the test has just written."""
        self._size_bytes += len(data)
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        self._keep(data[: self._log_left])
        self._log_left = max(0, self._log_left - len(data))
        if self._live_left > 0:
            self._show(self._decoder.decode(data[: self._live_left]))
            self._live_left -= len(data)
            if self._live_left <= 0:
                self._show(f"\n[shown no further; the log goes on in {self.log_path}]\n")

    def close(self) -> None:
        """End the log; where something was left out, its size and the end of it are shown."""
        if self._log_left == 0:
            note = f"\n[{self._size_bytes} bytes in all; left out up to here]\n"
            self._keep(note.encode() + self._tail)
        self._log.close()
        if self._live_left <= 0:
            end = self._tail[-_SHOWN_END_BYTES:].decode("utf-8", errors="replace")
            self._show(f"[{self._size_bytes} bytes in all, which end with]\n{end}")
        self._show(self._decoder.decode(b"", final=True))
        if not self._ends_line:
            self._show("\n")

    def _keep(self, data: bytes) -> None:
        """Write to the log; a full disk ends the log, and is told, but ends no test."""
        try:
            if self.problem is None:
                self._log.write(data)
        except OSError as error:
            self.problem = f"{self.log_path.name} ends early ({error.strerror})"
            self._show(f"\n[{self.problem}]\n")

    def _show(self, text: str) -> None:
        if text:
            self._ends_line = text.endswith("\n")
            self._live.write(text)
            self._live.flush()


def fenced(text: str, *, groups: bool) -> str:
    """A text in which a CI service finds no commands, as the log shows it."""
    token = secrets.token_hex(16)
    return f"::stop-commands::{token}\n{text}\n::{token}::\n" if groups else f"{text}\n"


class Fence:
    """Groups the lines of a test in the log of a CI service; without groups, a plain heading."""

    def __init__(self, live: Shows, title: str, *, groups: bool) -> None:
        self._live, self._title, self._groups = live, title, groups
        self._token = secrets.token_hex(16)

    def __enter__(self) -> None:
        start = f"::group::{self._title}\n::stop-commands::{self._token}\n"
        self._live.write(start if self._groups else f"=== {self._title}\n")
        self._live.flush()

    def __exit__(self, *_: object) -> None:
        if self._groups:
            self._live.write(f"::{self._token}::\n::endgroup::\n")
            self._live.flush()
