"""Buckets in device memory: acquired and released in pairs, whatever ends them."""

import asyncio
import secrets
from collections.abc import Iterator

import pytest
import torch
from unit.weights.ends import CONFIG, at_once, same, store_of
from unit.weights.fake_ipc import FakeIpc
from unit.weights.peer import tensors

from parity.errors import TransferError
from parity.platforms.cpu import CpuPlatform
from parity.platforms.facts import Facts
from parity.platforms.ipc import DeviceIpc
from parity.platforms.platform import Support
from parity.weights.host.buckets import DeviceMemory
from parity.weights.host.endpoints import RunDirectory
from parity.weights.transfer import Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer


@pytest.fixture
def directory() -> Iterator[RunDirectory]:
    made = RunDirectory.create(f"test-{secrets.token_hex(8)}")
    yield made
    made.close()


def receiver(directory: RunDirectory, store, ipc: FakeIpc | None, *, replica: int = 0):
    device = None if ipc is None else ipc.importer()
    return ZmqReceiver(directory, store, replica=replica, local_rank=0, device=device)


def sender(directory: RunDirectory, ipc: FakeIpc | None, *, receivers: int = 1) -> ZmqTransfer:
    device = None if ipc is None else ipc.exporter()
    return ZmqTransfer(directory, [(n, 0) for n in range(receivers)], CONFIG, device=device)


def publish(transfer: ZmqTransfer, version: int) -> None:
    weights = Weights(tensors(version))
    asyncio.run(transfer.publish(weights, version=version, switch=at_once))


def test_each_receiver_has_a_handle_of_its_own_that_is_kept_until_the_end(directory):
    ipc, stores = FakeIpc(), [store_of(tensors(0)) for _ in range(2)]
    receivers = [receiver(directory, store, ipc, replica=n) for n, store in enumerate(stores)]
    transfer = sender(directory, ipc, receivers=2)
    for version in (1, 2, 3):
        publish(transfer, version)
        assert all(same(store, tensors(version)) for store in stores)
    assert (ipc.exported, ipc.opened, ipc.closed) == (2, 2, 0)
    assert ipc.settled > 3  # before each answer that frees a bucket
    asyncio.run(transfer.close())
    assert ipc.is_balanced
    for each in receivers:
        each.close()


def test_a_receiver_that_is_started_again_gets_a_new_handle_and_the_old_one_is_released(directory):
    ipc, store = FakeIpc(), store_of(tensors(0))
    transfer = sender(directory, ipc)
    for version in (1, 2):
        receiving = receiver(directory, store, ipc)
        publish(transfer, version)
        receiving.close()
        assert ipc.opened == ipc.closed == version
    assert same(store, tensors(2))
    asyncio.run(transfer.close())
    assert ipc.is_balanced


def test_a_handle_of_a_dead_exporter_is_a_clear_error_on_both_sides(directory):
    ipc, store = FakeIpc(is_exporter_dead=True), store_of(tensors(0))
    receiving, transfer = receiver(directory, store, ipc), sender(directory, ipc)
    with pytest.raises(TransferError, match="receiver 0-0: device 0 can't map the buffer"):
        publish(transfer, 1)
    assert "can't map the buffer" in receiving.failures[-1]
    ipc.is_exporter_dead = False
    publish(transfer, 2)
    assert same(store, tensors(2))
    asyncio.run(transfer.close())
    receiving.close()
    assert ipc.is_balanced


def test_a_sender_that_dies_is_let_go_of(directory):
    ipc, store = FakeIpc(), store_of(tensors(0))
    receiving, transfer = receiver(directory, store, ipc), sender(directory, ipc)
    publish(transfer, 1)
    transfer._link._member.release()  # what the kernel does with a process

    async def let_go() -> None:
        async with asyncio.timeout(10):
            while ipc.closed < ipc.opened:
                await asyncio.sleep(0.01)

    asyncio.run(let_go())
    receiving.close()


def test_one_side_without_device_memory_is_refused(directory):
    ipc, store = FakeIpc(), store_of(tensors(0))
    receiving, transfer = receiver(directory, store, None), sender(directory, ipc)
    with pytest.raises(TransferError, match="this engine has no device IPC; both sides"):
        publish(transfer, 1)
    asyncio.run(transfer.close())
    receiving.close()
    assert (ipc.exported, ipc.opened) == (ipc.released, 0)


def test_device_memory_is_used_only_where_the_platform_supports_it(monkeypatch):
    ipc: DeviceIpc = FakeIpc()
    platform = CpuPlatform()
    assert DeviceMemory.of(platform, Facts(), 0) is None
    monkeypatch.setattr(CpuPlatform, "ipc", lambda self: ipc)
    for answer, expected in ((True, True), (None, False), (False, False)):
        support = Support(answer, "says the test")
        monkeypatch.setattr(CpuPlatform, "ipc_support", lambda self, facts, s=support: s)
        found = DeviceMemory.of(platform, Facts(), 0)
        assert (found is not None) is expected
        if found is not None:
            assert (found.ipc, found.device) == (ipc, torch.device("cpu"))
            found.synchronize()
