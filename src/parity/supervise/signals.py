"""Lets a thread see SIGINT and SIGTERM even while Python's main thread is stuck.

Python runs its signal handlers in the main thread, asyncio's in the event loop: neither
happens while that thread blocks. But the byte that goes to the wake-up descriptor is written
at once, whatever the main thread does. So the watchdog reads that descriptor and hands every
byte on to asyncio's own.
"""

import os
import select
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

STOPS = frozenset({signal.SIGINT, signal.SIGTERM})


class SignalWatch:
    """Counts the signals that ask for an end; `wait` is for one thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._onward = -1  # asyncio's wake-up descriptor
        self.num_stops = 0

    @contextmanager
    def taken(self) -> Generator[None]:
        """Stand between the kernel and asyncio; only the main thread can, others do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._onward = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(self._onward, warn_on_full_buffer=False)
            self._onward = -1

    def wait(self, timeout_s: float) -> None:
        """Sleep, at most so long; wakes at a signal or at `wake`."""
        ready, _, _ = select.select([self._reader], [], [], timeout_s)
        if not ready:
            return
        numbers = self._reader.recv(4096).strip(b"\0")
        self.num_stops += sum(number in STOPS for number in numbers)
        if numbers and self._onward >= 0:
            with suppress(OSError):  # full: asyncio has enough to wake up for
                os.write(self._onward, numbers)

    def wake(self) -> None:
        """End a `wait`."""
        with suppress(OSError):
            self._writer.send(b"\0")

    def close(self) -> None:
        """Give both ends back."""
        self._reader.close()
        self._writer.close()
