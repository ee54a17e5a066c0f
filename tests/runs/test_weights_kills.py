"""Either side of a publication is killed or stopped at many random points, in real processes.

Each point is one process that dies (SIGKILL) or hangs (SIGSTOP) while versions follow each other.
What is served afterwards is one version, whole; the side that lives ends within the bound; no
shared memory, socket or file descriptor is left.
"""

import asyncio
import gc
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from runs import test_weights as pairs
from unit.weights import peer
from unit.weights.ends import store_of

from parity.errors import ParityError
from parity.weights.disk import DiskReceiver

forks = pairs.forks
POINTS = int(os.environ.get("PARITY_TEST_KILL_POINTS", "25"))  # per transport, side and signal
TRANSPORTS = ("zmq_ipc", "disk", "collective")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def is_open(receiving) -> bool:
    """Whether a receiver of any transport has a publication under way."""
    if isinstance(receiving, DiskReceiver):
        return receiving._staged is not None
    return receiving._responder.is_open


def num_files() -> int:
    gc.collect()  # a process group ends with the last reference, which an error's traceback holds
    return len(list(Path("/proc/self/fd").iterdir()))


async def stop_while_publishing(
    transfer, other: pairs.Peer, word: signal.Signals, after_s: float, first: int
) -> tuple[ParityError, float]:
    """Publish version after version, signal the receiver meanwhile; the error and its delay."""
    stop = time.monotonic() + 40
    publishing = asyncio.create_task(pairs.publish_until(transfer, stop, first=first))
    await asyncio.sleep(after_s)
    os.kill(other.process.pid, word)
    signalled = time.monotonic()
    return await publishing, time.monotonic() - signalled


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("word", SIGNALS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_receivers_end_at_many_random_points(
    transport: str, word: signal.Signals, tmp_path: Path, forks
):
    noise = random.Random()
    files = []
    for point in range(POINTS if word == signal.SIGKILL else max(1, POINTS // 5)):
        with pairs.meeting_place(transport, tmp_path / str(point)) as where, ExitStack() as stack:
            other = stack.enter_context(pairs.Peer(forks, peer.receive, transport, where))
            transfer = pairs.sender(transport, where)
            assert other.said() == "ready"
            after_s = noise.random() * 0.3
            error, seconds = asyncio.run(
                stop_while_publishing(transfer, other, word, after_s, first=1)
            )
            assert seconds < pairs.BOUND_S, (point, after_s, str(error))
            assert "phase" in str(error), (point, after_s, str(error))
            other.kill()
            asyncio.run(transfer.close())
        files.append(num_files())
    assert pairs.no_shared_memory()
    assert files[-1] <= files[0] + 3, files


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("word", SIGNALS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_senders_end_at_many_random_points(
    transport: str, word: signal.Signals, tmp_path: Path, forks
):
    noise = random.Random()
    files = []
    for point in range(POINTS if word == signal.SIGKILL else max(1, POINTS // 5)):
        with pairs.meeting_place(transport, tmp_path / str(point)) as where, ExitStack() as stack:
            store = store_of(peer.tensors(0))
            store.overwrite()
            if transport == "collective":
                other = stack.enter_context(pairs.Peer(forks, peer.send, transport, where))
                receiving = pairs.receiver(transport, where, store)
            else:
                receiving = pairs.receiver(transport, where, store)
                other = stack.enter_context(pairs.Peer(forks, peer.send, transport, where))
            assert other.said() == "version 1"
            after_s = noise.random() * 0.3
            time.sleep(after_s)
            os.kill(other.process.pid, word)
            end = time.monotonic() + pairs.BOUND_S
            while is_open(receiving):
                assert time.monotonic() < end, (point, after_s, "still open")
                time.sleep(0.02)
            other.kill()
            receiving.close()
            assert pairs.only_value(store) == {float(store.version)}, (point, after_s)
            assert store.version >= 1
        files.append(num_files())
    assert pairs.no_shared_memory()
    assert files[-1] <= files[0] + 3, files
