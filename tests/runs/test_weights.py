"""Publications between processes that die: the other side ends in time and serves one version."""

import asyncio
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed
from unit.weights import peer
from unit.weights.ends import CONFIG, at_once, store_of

from parity.errors import DeadlineError, ParityError, TransferError
from parity.weights.collective import CollectiveReceiver, CollectiveTransfer
from parity.weights.disk import DiskReceiver, DiskTransfer
from parity.weights.host.endpoints import RunDirectory
from parity.weights.session.store import StagedStore
from parity.weights.transfer import Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer

TESTS = Path(__file__).parents[1]
BOUND_S = 15.0  # longest silence that the config below allows, and room for a busy machine
QUICK = replace(CONFIG, timeout_s=5.0, commit_timeout_s=5.0)


@pytest.fixture(scope="module")
def forks():
    """A fork server that has torch imported already."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(TESTS)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["unit.weights.peer"])
    yield context
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


class Peer:
    """Another process, killed at the end if it still lives."""

    def __init__(self, context, role, transport: str, where: object) -> None:
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=role, args=(transport, str(where), theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def said(self) -> str:
        assert self._pipe.poll(60), "the other process says nothing"
        return self._pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(10)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._pipe.close()


@contextmanager
def meeting_place(transport: str, tmp_path: Path):
    """What both processes are told; for collective also this process's rank of the group."""
    if transport == "disk":
        yield tmp_path / "weights"
    elif transport == "zmq_ipc":
        directory = RunDirectory.create(str(tmp_path))
        yield directory.path
        directory.close()
        assert not directory.path.exists()
    else:
        store = distributed.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        yield f"127.0.0.1:{store.port}"


def sender(transport: str, where: object):
    if transport == "zmq_ipc":
        return ZmqTransfer(RunDirectory.join(Path(str(where))), [(0, 0)], QUICK)
    if transport == "disk":
        return DiskTransfer(Path(str(where)), ["engine"], QUICK)
    return CollectiveTransfer(peer.group_at(str(where), 0), QUICK)


def receiver(transport: str, where: object, store: StagedStore):
    if transport == "zmq_ipc":
        directory = RunDirectory.join(Path(str(where)))
        return ZmqReceiver(directory, store, replica=0, local_rank=0)
    if transport == "disk":
        return DiskReceiver(Path(str(where)), store, name="engine", look_s=0.005)
    return CollectiveReceiver(peer.group_at(str(where), 1), store)


def only_value(store: StagedStore) -> set[float]:
    return {float(value) for tensor in store.served.values() for value in tensor.unique()}


async def publish_until(transfer, stop, *, first: int = 1) -> ParityError:
    """Publish until it fails."""
    version = first
    while time.monotonic() < stop:
        weights = Weights(peer.tensors(version))
        try:
            await transfer.publish(weights, version=version, switch=at_once)
        except ParityError as error:
            return error
        version += 1
    raise AssertionError("publishing went on to a dead receiver")


@pytest.mark.parametrize("transport", ["zmq_ipc", "disk", "collective"])
def test_a_receiver_killed_at_a_random_point_is_an_error_at_the_sender_in_time(
    transport: str, tmp_path: Path, forks
):
    noise = random.Random()
    with meeting_place(transport, tmp_path) as where, ExitStack() as stack:
        first = stack.enter_context(Peer(forks, peer.receive, transport, where))
        transfer = sender(transport, where)
        assert first.said() == "ready"

        async def scenario() -> tuple[ParityError, float]:
            stop = time.monotonic() + 40
            publishing = asyncio.create_task(publish_until(transfer, stop))
            await asyncio.sleep(0.3 + noise.random() * 0.3)
            first.kill()
            killed = time.monotonic()
            return await publishing, time.monotonic() - killed

        error, seconds = asyncio.run(scenario())
        assert seconds < BOUND_S
        assert "phase" in str(error)
        if transport != "collective":  # a process group can't be joined again
            second = stack.enter_context(Peer(forks, peer.receive, transport, where))
            assert second.said() == "ready"
            weights = Weights(peer.tensors(9999))
            asyncio.run(transfer.publish(weights, version=9999, switch=at_once))
            while (word := second.said()) != "version 9999":
                assert word.startswith("version"), word  # the live one, where it joins late
        asyncio.run(transfer.close())
    assert no_shared_memory()


@pytest.mark.parametrize("transport", ["zmq_ipc", "disk", "collective"])
def test_a_sender_killed_at_a_random_point_leaves_one_whole_version(
    transport: str, tmp_path: Path, forks
):
    noise = random.Random()
    store = store_of(peer.tensors(0))
    store.overwrite()
    with meeting_place(transport, tmp_path) as where, ExitStack() as stack:
        for round_ in range(2 if transport == "zmq_ipc" else 1):
            if transport == "collective":
                started = stack.enter_context(Peer(forks, peer.send, transport, where))
                receiving = receiver(transport, where, store)
            else:
                store = store_of(peer.tensors(0))
                receiving = receiver(transport, where, store)
                started = stack.enter_context(Peer(forks, peer.send, transport, where))
            assert started.said() == "version 1", round_
            time.sleep(noise.random() * 0.3)
            started.kill()
            end = time.monotonic() + BOUND_S
            while receiving._responder.is_open if transport != "disk" else False:
                assert time.monotonic() < end, "the publication of a dead sender is still open"
                time.sleep(0.02)
            receiving.close()
            assert only_value(store) == {float(store.version)}
            assert store.version >= 1
            if transport == "disk":
                for path in (tmp_path / "weights/versions").iterdir():
                    path.unlink()
                (tmp_path / "weights/live.json").unlink()
    assert no_shared_memory()


def test_a_receiver_that_hangs_is_reported_with_the_phase(tmp_path: Path, forks):
    with (
        meeting_place("zmq_ipc", tmp_path) as where,
        Peer(forks, peer.receive, "zmq_ipc", where) as other,
    ):
        assert other.said() == "ready"
        directory = RunDirectory.join(where)
        transfer = ZmqTransfer(directory, [(0, 0)], replace(QUICK, timeout_s=1.0))
        weights = Weights(peer.tensors(1))
        asyncio.run(transfer.publish(weights, version=1, switch=at_once))
        os.kill(other.process.pid, signal.SIGSTOP)
        with pytest.raises(DeadlineError, match=r"receiver 0-0 within 1 s in phase connect"):
            asyncio.run(transfer.publish(weights, version=2, switch=at_once))
        os.kill(other.process.pid, signal.SIGCONT)
        asyncio.run(transfer.publish(Weights(peer.tensors(3)), version=3, switch=at_once))
        asyncio.run(transfer.close())


def test_an_absent_receiver_is_an_error_within_the_bound(tmp_path: Path):
    with meeting_place("zmq_ipc", tmp_path) as where:
        quick = replace(QUICK, timeout_s=0.5)
        transfer = ZmqTransfer(RunDirectory.join(where), [(0, 0), (1, 0)], quick)
        with pytest.raises(DeadlineError, match=r"0-0, receiver 1-0 .* in phase connect"):
            asyncio.run(transfer.publish(Weights(peer.tensors(1)), version=1, switch=at_once))
        asyncio.run(transfer.close())
    disk = DiskTransfer(tmp_path / "disk", ["nobody"], replace(QUICK, timeout_s=0.5))
    with pytest.raises(DeadlineError, match=r"receiver nobody within 0\.5 s in phase verified"):
        asyncio.run(disk.publish(Weights(peer.tensors(1)), version=1, switch=at_once))
    assert disk._library.versions() == []
    asyncio.run(disk.close())


@contextmanager
def tiny_memory(folder: Path, size: str):
    """A shared-memory folder of so many bytes."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_too_little_shared_memory_is_a_clear_error_and_kills_nobody(tmp_path: Path):
    store = store_of(peer.tensors(0))
    with (
        meeting_place("zmq_ipc", tmp_path) as where,
        tiny_memory(tmp_path / "shm", "256k") as folder,
    ):
        directory = RunDirectory.join(where)
        receiving = ZmqReceiver(directory, store, replica=0, local_rank=0)
        config = replace(QUICK, shared_memory_dir=str(folder), bucket_mib=1.0)
        transfer = ZmqTransfer(directory, [(0, 0)], config)
        with pytest.raises(TransferError, match=r"need 2\.00 MiB in .*has 0\.25 MiB free of 0\.25"):
            asyncio.run(transfer.publish(Weights(peer.tensors(1)), version=1, switch=at_once))
        assert list(folder.iterdir()) == []
        asyncio.run(transfer.close())
        fits = ZmqTransfer(directory, [(0, 0)], replace(config, bucket_mib=0.125))
        asyncio.run(fits.publish(Weights(peer.tensors(2)), version=2, switch=at_once))
        assert only_value(store) == {2.0}
        asyncio.run(fits.close())
        receiving.close()


def test_two_runs_at_once_and_one_that_was_killed_do_not_meet(tmp_path: Path):
    stores = [store_of(peer.tensors(0)) for _ in range(2)]
    directories = [RunDirectory.create(f"{tmp_path}-{n}") for n in range(2)]
    pairs = [
        (
            ZmqReceiver(directory, store, replica=0, local_rank=0),
            ZmqTransfer(directory, [(0, 0)], QUICK),
        )
        for directory, store in zip(directories, stores, strict=True)
    ]

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            for number, (_, transfer) in enumerate(pairs):
                weights = Weights(peer.tensors(7 + number))
                group.create_task(transfer.publish(weights, version=1, switch=at_once))

    asyncio.run(both())
    assert [only_value(store) for store in stores] == [{7.0}, {8.0}]
    for directory, (receiving, transfer) in zip(directories, pairs, strict=True):
        asyncio.run(transfer.close())
        receiving.close()
        directory.close()
        assert not directory.path.exists()
    assert no_shared_memory()


def no_shared_memory() -> bool:
    """Whether nothing of ours that is dead lies in the shared memory of this machine."""
    from parity.weights.host.endpoints import is_held

    ours = Path("/dev/shm").glob(f"parity-{os.getuid()}-*")
    return all(path.is_dir() or is_held(path) for path in ours)


def test_served_weights_are_proven_by_overwriting_them_first(tmp_path: Path):
    class Idle(StagedStore):
        """Says that it commits, and goes on with what it had."""

        def commit(self, version: int) -> None:
            self._version = version
            self._manifest = None

    weights = Weights(peer.tensors(3), aliases=())
    for kind in (StagedStore, Idle):
        store = store_of(peer.tensors(3), like=kind)
        for tensors in (store._served, store._staged):  # as if loaded from the same checkpoint
            for name, tensor in peer.tensors(3):
                tensors[name].copy_(tensor)
        with meeting_place("zmq_ipc", tmp_path) as where:
            directory = RunDirectory.join(where)
            receiving = ZmqReceiver(directory, store, replica=0, local_rank=0)
            transfer = ZmqTransfer(directory, [(0, 0)], QUICK)
            if kind is Idle:
                with pytest.raises(TransferError, match="serves other values"):
                    asyncio.run(transfer.prove(weights, version=1, switch=at_once))
            else:
                asyncio.run(transfer.prove(weights, version=1, switch=at_once))
                assert only_value(store) == {3.0}
            asyncio.run(transfer.close())
            receiving.close()


def test_an_engine_that_joins_late_takes_the_live_version_from_the_folder(tmp_path: Path):
    config = replace(QUICK, delta="xor", full_every=4, keep=2)
    transfer = DiskTransfer(tmp_path, [], config)
    noise = torch.Generator().manual_seed(1)
    values = {name: tensor.clone() for name, tensor in peer.tensors(0)}
    for version in range(1, 8):
        values = {
            name: torch.where(torch.rand(tensor.shape, generator=noise) < 0.02, version, tensor)
            for name, tensor in values.items()
        }
        report = asyncio.run(
            transfer.publish(Weights(list(values.items())), version=version, switch=at_once)
        )
    assert report.wire_bytes < report.size_bytes / 5
    store = store_of(peer.tensors(0))
    receiving = DiskReceiver(tmp_path, store, name="late", look_s=0.005)
    end = time.monotonic() + BOUND_S
    while store.version != 7:
        assert time.monotonic() < end, receiving.failures
        time.sleep(0.01)
    assert all(torch.equal(store.served[name], tensor) for name, tensor in values.items())
    receiving.close()
    asyncio.run(transfer.close())
    assert len(list((tmp_path / "versions").iterdir())) <= config.keep + config.full_every


def test_a_transfer_that_nobody_closed_ends_with_its_garbage():
    """Else the collector waits in ZeroMQ, at any later moment of the process, for good."""
    script = """
import gc
from parity.weights.config import WeightsConfig
from parity.weights.host.endpoints import RunDirectory
from parity.weights.zmq_ipc import ZmqTransfer
directory = RunDirectory.create("forgotten")
for _ in range(20):
    cycle = [ZmqTransfer(directory, [(0, 0), (1, 0)], WeightsConfig())]
    cycle.append(cycle)
    del cycle
    gc.collect()
directory.close()
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ended\n", done.stderr
