"""The log file of a run: what it can't write is told once on the screen, and costs nothing else.

Used by `launch.py`. Invariant: neither a call of a logger nor `close` ever raises because of the
disk, and no traceback of Python's logging appears between the lines of a run.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class LogFile(logging.FileHandler):
    """Appends to a file for as long as the disk takes it."""

    def __init__(self, path: Path, *, tell: Callable[[str], None]) -> None:
        """`tell` shows a sentence to the user."""
        super().__init__(path, encoding="utf-8")
        self._tell = tell
        self.num_lost = 0  # lines that weren't written when they should have been

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 logging's name
        """Count a line that the disk refused; another error is the call's fault, told as ever."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self.num_lost += 1
        if self.num_lost == 1:
            self._tell(
                f"{self.baseFilename} can't be written ({error}); the run goes on, but the log"
                " lacks lines. Free disk space."
            )

    def close(self) -> None:
        """Give the file back, whatever the disk says of what is left to write."""
        with suppress(OSError):
            super().close()
