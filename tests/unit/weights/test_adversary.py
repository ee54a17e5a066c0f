"""Hostile input to the ends of `zmq_ipc` and to the transaction: an engine outlives all of it."""

import asyncio
import gc
import os
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import torch
import zmq
from torch import distributed
from unit.weights.ends import BUCKET, CONFIG, TRANSPORTS, at_once, same, store_of
from unit.weights.peer import tensors

from parity.errors import ParityError, TransferError
from parity.weights.collective import Group
from parity.weights.direct import DirectTransfer
from parity.weights.host import endpoints, shared_memory
from parity.weights.host.endpoints import Lock, RunDirectory, is_held
from parity.weights.host.shared_memory import SharedBuffer
from parity.weights.manifest import Manifest
from parity.weights.session.engine_store import EngineStore
from parity.weights.session.reception import Reception
from parity.weights.session.responder import Responder
from parity.weights.session.store import StagedStore
from parity.weights.transfer import Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer


@pytest.fixture
def directory() -> Iterator[RunDirectory]:
    made = RunDirectory.create(f"test-{secrets.token_hex(8)}")
    yield made
    made.close()


def publish(transfer, version: int, *, switch=at_once) -> None:
    weights = Weights(tensors(version))
    asyncio.run(transfer.publish(weights, version=version, switch=switch))


def message(**fields: object) -> bytes:
    return msgpack.packb({"kind": "hello", "session": "s", "number": 1, "sender": "x", **fields})


def deep(depth: int) -> bytes:
    return b"\x81\xa1a" + b"\x91" * depth + b"\xc0"


GARBAGE: dict[str, list[bytes]] = {
    "nothing": [b""],
    "an empty frame first": [b"", message()],
    "five frames": [b"a", b"b", b"c", b"d", b"e"],
    "no msgpack": [b"\xc1" * 100],
    "a pickle": [b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00."],
    "a list": [msgpack.packb([1, 2])],
    "deep": [deep(900)],
    "number is deep": [message(number=None)[:-5] + deep(600)],
    "number is a map": [message(number={"a": {}})],
    "session is bytes": [message(session=b"\xff")],
    "sender is a zero byte": [message(sender="\0")],
    "sender leads elsewhere": [message(sender="../../etc/passwd")],
    "unknown kind": [message(kind="format the disk")],
    "a path with a zero byte": [message(kind="map", path="\0", size_bytes=1)],
    "no size": [message(kind="map", path="/dev/zero")],
    "truncated": [message()[:-3]],
    "many bytes": [secrets.token_bytes(100_000)],
}


def test_garbage_on_the_socket_never_ends_a_receiver(directory: RunDirectory):
    store = store_of(tensors(0))
    receiver = ZmqReceiver(directory, store, replica=0, local_rank=0)
    transfer = ZmqTransfer(directory, [(0, 0)], CONFIG)
    context = zmq.Context()
    for version, (kind, frames) in enumerate(GARBAGE.items(), start=1):
        with context.socket(zmq.DEALER) as foreign:
            foreign.setsockopt(zmq.LINGER, 1000)
            foreign.connect(directory.address("0-0"))
            living = transfer._link._member.path.stem
            hello = message(sender=living, session="foreign")
            foreign.send(hello)
            assert foreign.poll(5000), kind
            assert msgpack.unpackb(foreign.recv())["ok"] is True
            foreign.send_multipart(frames)
            foreign.send(message(kind="map", path="\0", size_bytes=1, session="foreign"))
            for _ in range(2):
                assert foreign.poll(5000), f"no answer to {kind}"
                foreign.recv_multipart()
        publish(transfer, version)
        assert same(store, tensors(version)), kind
    context.term()
    asyncio.run(transfer.close())
    receiver.close()


def test_two_senders_in_turn_never_mix_their_buckets_not_even_unverified(directory: RunDirectory):
    store = store_of(tensors(0))
    receiver = ZmqReceiver(directory, store, replica=0, local_rank=0)
    config = replace(CONFIG, verify="off")
    senders = [ZmqTransfer(directory, [(0, 0)], config) for _ in range(2)]
    for version in range(1, 7):
        publish(senders[version % 2], version)
        assert same(store, tensors(version)), version
    for sender in senders:
        asyncio.run(sender.close())
    receiver.close()


def test_a_receiver_closed_twice_leaves_its_successors_socket_alone(directory: RunDirectory):
    first = ZmqReceiver(directory, store_of(tensors(0)), replica=0, local_rank=0)
    first.close()
    store = store_of(tensors(0))
    second = ZmqReceiver(directory, store, replica=0, local_rank=0)
    first.close()
    transfer = ZmqTransfer(directory, [(0, 0)], CONFIG)
    publish(transfer, 1)
    assert same(store, tensors(1))
    asyncio.run(transfer.close())
    second.close()


def liar(context: zmq.Context, address: str, answer) -> threading.Thread:
    """A receiver that answers each message with what `answer` makes of it."""

    def serve() -> None:
        with context.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(address)
            while socket.poll(1500):
                identity, data = socket.recv_multipart()
                for each in answer(msgpack.unpackb(data)):
                    socket.send_multipart([identity, each])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def packed(asked: dict, **more: object) -> bytes:
    frame = {"session": asked["session"], "number": asked["number"], "ok": True}
    return msgpack.packb({**frame, "incarnation": "i", "version": 1, **more})


LIES = {
    "to the future": (lambda m: [packed(m, number=10**6)], r"answers message 1000000; only"),
    "not a map": (lambda m: [msgpack.packb(3)], "is a int, not a map"),
    "number is text": (lambda m: [packed(m, number="1")], "number of a control message"),
    "no reason": (lambda m: [packed(m, ok=False)], "reason of a control message"),
    "no incarnation": (lambda m: [packed(m, incarnation=None)], "incarnation of a control"),
    "never": (lambda m: [], "within 1 s in phase connect"),
    "to another": (lambda m: [packed(m, session="other")], "within 1 s in phase connect"),
    "to the past": (lambda m: [packed(m, number=m["number"] - 1)], "within 1 s in phase connect"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_receiver_that_lies_is_an_error_within_the_bound(directory: RunDirectory, lie: str):
    answer, match = LIES[lie]
    context = zmq.Context()
    thread = liar(context, directory.address("0-0"), answer)
    transfer = ZmqTransfer(directory, [(0, 0)], replace(CONFIG, timeout_s=1.0))
    with pytest.raises(ParityError, match=match):
        publish(transfer, 1)
    asyncio.run(transfer.close())
    thread.join(10)
    context.term()


def test_a_receiver_that_answers_everything_twice_is_understood(directory: RunDirectory):
    context = zmq.Context()
    thread = liar(context, directory.address("0-0"), lambda m: [packed(m)] * 2)
    transfer = ZmqTransfer(directory, [(0, 0)], replace(CONFIG, timeout_s=5.0, verify="off"))
    publish(transfer, 1)
    asyncio.run(transfer.close())
    thread.join(10)
    context.term()


class Slow(StagedStore):
    """Commits when it is let."""

    def __init__(self, *arguments, **more) -> None:
        super().__init__(*arguments, **more)
        self.began, self.go = threading.Event(), threading.Event()

    def commit(self, version: int) -> None:
        self.began.set()
        assert self.go.wait(20)
        super().commit(version)


@pytest.mark.parametrize("transport", ["zmq_ipc", "disk_xor", "collective"])
def test_a_commit_that_is_cancelled_ends_before_the_next_publication(
    transport: str, tmp_path: Path
):
    store = store_of(tensors(0), like=Slow)
    with TRANSPORTS[transport]([store], CONFIG, tmp_path / "weights") as ends:

        async def scenario() -> None:
            weights = Weights(tensors(1))
            task = asyncio.create_task(ends.transfer.publish(weights, version=1, switch=at_once))
            assert await asyncio.to_thread(store.began.wait, 20)
            for _ in range(3):  # a user who is impatient
                task.cancel()
                await asyncio.sleep(0.05)
            await asyncio.to_thread(store.go.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            weights = Weights(tensors(2))
            await ends.transfer.publish(weights, version=2, switch=at_once)

        asyncio.run(scenario())
        assert same(store, tensors(2))


class Stubborn(StagedStore):
    """Fails, and then can't even forget."""

    is_broken = False

    def write(self, entry, start, flat):
        if self.is_broken:
            raise RuntimeError("out of staging memory")
        return super().write(entry, start, flat)

    def take(self, entry, tensor):
        return self.write(entry, 0, tensor.contiguous().view(-1))

    def abort(self, reason: str) -> None:
        super().abort(reason)
        if self.is_broken:
            raise RuntimeError("nor can it be forgotten")


@pytest.mark.parametrize("transport", ["direct", "zmq_ipc", "collective", "disk_xor"])
def test_a_store_that_cannot_abort_keeps_the_first_reason(transport: str, tmp_path: Path):
    store = store_of(tensors(0), like=Stubborn)
    store.is_broken = True
    config = replace(CONFIG, verify="off")
    with TRANSPORTS[transport]([store], config, tmp_path / "weights") as ends:
        with pytest.raises((ParityError, RuntimeError), match="out of staging memory"):
            ends.publish(tensors(1), version=1)
        store.is_broken = False
        ends.publish(tensors(2), version=2)
        assert same(store, tensors(2))


def test_a_commit_that_comes_twice_is_told_what_happened_to_the_first():
    store = store_of([("a", torch.ones(3))])
    responder = Responder(store, name="x")
    responder.lost("an older reason")
    begun = Reception(store, Manifest.of(1, [("a", torch.ones(3))]), has_digests=False)
    begun.take(0, torch.ones(3))
    begun.verify(None)
    responder._reception = begun
    commit = {"kind": "commit", "version": 1}
    assert responder.answer(commit, lambda *_: torch.empty(0))["ok"] is True
    again = responder.answer(commit, lambda *_: torch.empty(0))
    assert again["reason"] == "version 1 was committed already."


def test_a_tensor_of_another_dtype_than_announced_is_refused():
    store = store_of([("a", torch.ones(3))])
    begun = Reception(store, Manifest.of(1, [("a", torch.ones(3))]), has_digests=False)
    with pytest.raises(TransferError, match=r"announced a as float32 and brought torch\.int32"):
        begun.take(0, torch.ones(3, dtype=torch.int32))


def test_engines_of_one_process_that_served_already_are_named():
    class Stuck(StagedStore):
        def commit(self, version: int) -> None:
            raise RuntimeError("stuck")

    stores = [store_of(tensors(0)), store_of(tensors(0), like=Stuck)]
    with pytest.raises(TransferError, match=r"engine 1: stuck\). Engines \[0\] serve it already"):
        publish(DirectTransfer(stores), 1)
    assert [store.version for store in stores] == [1, 0]


def test_caches_before_a_broken_one_forget_what_they_saw_of_the_undone_version():
    calls: list[int] = []

    def broken(version: int) -> None:
        raise NotImplementedError("no reset")

    store = store_of(tensors(0), caches={"prefix": calls.append, "graphs": broken})
    with pytest.raises(TransferError, match="graphs couldn't be invalidated"):
        publish(DirectTransfer([store]), 1)
    assert calls == [1, 0]


def test_a_lock_that_cannot_be_looked_at_counts_as_held(tmp_path: Path, monkeypatch):
    def no_files(*arguments, **more):
        raise OSError(24, "Too many open files")

    (tmp_path / "x.lock").touch()
    assert not is_held(tmp_path / "x.lock")
    monkeypatch.setattr(os, "open", no_files)
    assert is_held(tmp_path / "x.lock")


def test_runs_that_begin_and_end_at_once_never_trip_over_each_other(monkeypatch):
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as top:

        def live(number: int) -> None:
            for turn in range(30):
                made = RunDirectory.create(f"{number}-{turn}", parent=Path(top))
                made.claim(0, 0).release()
                made.close()

        with ThreadPoolExecutor(6) as threads:
            ends = [threads.submit(live, number) for number in range(6)]
            assert [end.exception(60) for end in ends] == [None] * 6
        assert list(Path(top).iterdir()) == []


def test_shared_memory_of_runs_at_once_is_not_taken_for_a_leftover(tmp_path: Path, monkeypatch):
    lock, taken = shared_memory.fcntl.flock, []

    def removed_first(file: int, how: int) -> None:
        if not taken:  # another run looks between open and lock
            (path,) = tmp_path.iterdir()
            taken.append(path)
            path.unlink()
        lock(file, how)

    monkeypatch.setattr(shared_memory.fcntl, "flock", removed_first)
    made = SharedBuffer.create(tmp_path, "parity-0-test", 4096)
    assert made.path.exists()
    assert made.path != taken[0]
    made.unlink()
    made.close()

    def make(_: int) -> None:
        for _ in range(40):
            other = SharedBuffer.create(tmp_path, "parity-0-test", 4096)
            other.unlink()
            other.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, range(4)))
    assert list(tmp_path.iterdir()) == []


def num_of_everything() -> tuple[int, int, int]:
    memory = len(list(Path("/dev/shm").glob(f"parity-{os.getuid()}-*")))
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), memory


@pytest.mark.parametrize(
    "transport",
    [
        "direct",
        "zmq_ipc",
        pytest.param("collective", marks=pytest.mark.slow),
        pytest.param("disk_xor", marks=pytest.mark.slow),
    ],
)
def test_200_publications_leave_no_more_than_five_did(transport: str, tmp_path: Path):
    before = num_of_everything()
    store = store_of(tensors(0))
    small = [("a", torch.zeros(BUCKET // 2)), ("b", torch.zeros(3))]
    store = store_of(small)
    folder = tmp_path / "weights"
    with TRANSPORTS[transport]([store], replace(CONFIG, keep=2), folder) as ends:
        counts = []
        for version in range(1, 201):
            weights = [(name, tensor + version) for name, tensor in small]
            if version % 10 == 0:  # refused ones leave nothing either
                with pytest.raises(ParityError, match="missing"):
                    ends.publish(weights[:1], version=version)
            else:
                ends.publish(weights, version=version)
            counts.append(num_of_everything())
        assert max(c[0] for c in counts[100:]) <= max(c[0] for c in counts[:20]) + 1
        assert max(c[1] for c in counts[100:]) <= max(c[1] for c in counts[:20]) + 1
        if transport == "collective":
            assert ends.transfer._link._group._store.num_keys() < 40
        if transport == "disk_xor":
            assert len(list(folder.rglob("*"))) < 120
    del ends, store
    gc.collect()  # a process group ends with the last reference
    after = num_of_everything()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + 1
    assert after[2] <= before[2]


def test_a_store_of_the_group_that_is_gone_is_one_clear_sentence():
    made = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    theirs = distributed.TCPStore("127.0.0.1", made.port, is_master=False)
    group = Group(None, theirs, rank=0, size=2)
    group.put("a", {"kind": "hello"})
    assert group.look("a") == {"kind": "hello"}
    del made
    gc.collect()
    with pytest.raises(TransferError, match="the group's store can't be reached"):
        for _ in range(10):
            group.put("a", {"kind": "hello"})
            group.look("a")


def test_an_engine_that_refuses_an_empty_tensor_is_told_to_forget_the_rest():
    said: list[str] = []

    class Refusing:
        version = 0

        async def begin_load(self, manifest: Manifest) -> None:
            said.append("begun")

        async def load(self, tensors) -> None:
            raise RuntimeError("no room")

        async def abort_load(self, reason: str) -> None:
            said.append(reason)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    store = EngineStore(Refusing(), loop, timeout_s=5)
    with pytest.raises(RuntimeError, match="no room"):
        store.begin(Manifest.of(1, [("none", torch.empty(0, 3))]))
    assert said == ["begun", "no room"]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


def test_a_folder_without_locks_is_one_clear_sentence(tmp_path: Path, monkeypatch):
    def unsupported(file: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(endpoints.fcntl, "flock", unsupported)
    with pytest.raises(TransferError, match=r"can't be locked .*has flock"):
        Lock(tmp_path / "x.lock")
