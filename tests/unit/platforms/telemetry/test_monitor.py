"""The monitor never waits for a device and never shows what is old as new."""

import threading
import time

from parity.platforms.telemetry.monitor import Monitor
from parity.platforms.telemetry.telemetry import Identity, Reading, Snapshot, Telemetry

READING = Reading(identity=Identity(key="d", index=0))


class Source(Telemetry):
    """Answers until it is told to hang."""

    source = "test"

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.hung = threading.Event()
        self.release = threading.Event()
        self.is_closed = False
        self.num_reads = 0

    def read(self) -> Snapshot:
        self.num_reads += 1
        if self.hangs.is_set():
            self.hung.set()
            self.release.wait(30)
        return Snapshot((READING,))

    def close(self) -> None:
        self.is_closed = True


def wait_until(holds, within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it didn't come to hold"
        time.sleep(0.005)


def test_the_newest_snapshot_is_there_at_once():
    source = Source()
    monitor = Monitor(source, interval_s=0.01, max_age_s=30)
    assert monitor.latest().problem == "test isn't read yet"
    monitor.start()
    wait_until(lambda: source.num_reads > 2)
    assert monitor.latest() == Snapshot((READING,))
    assert monitor.stop()
    assert source.is_closed


def test_a_source_that_hangs_keeps_nobody_waiting():
    source = Source()
    monitor = Monitor(source, interval_s=0.01, max_age_s=0.2)
    monitor.start()
    source.hangs.set()
    assert source.hung.wait(10)
    wait_until(lambda: not monitor.latest().readings)
    assert "hasn't answered for" in (monitor.latest().problem or "")
    source.release.set()
    assert monitor.stop()


def test_a_source_that_hangs_from_the_start_is_not_awaited_at_the_end():
    source = Source()
    source.hangs.set()
    monitor = Monitor(source, interval_s=0.01, max_age_s=0.05)
    monitor.start()
    assert source.hung.wait(10)
    wait_until(lambda: "hasn't answered for" in (monitor.latest().problem or ""))
    begun = time.monotonic()
    assert not monitor.stop()
    assert time.monotonic() - begun < 10
    source.release.set()


def test_a_source_that_breaks_its_word_ends_no_thread():
    class Broken(Source):
        def read(self) -> Snapshot:
            super().read()
            raise RuntimeError("lost")

        def close(self) -> None:
            raise RuntimeError("lost too")

    source = Broken()
    monitor = Monitor(source, interval_s=0.01, max_age_s=60)
    monitor.start()
    wait_until(lambda: source.num_reads > 2)
    assert monitor.latest() == Snapshot((), "test failed: RuntimeError('lost')")
    assert monitor.stop()
