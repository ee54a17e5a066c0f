"""Both ends of every transport in one process, for tests: a sender and two stores."""

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from unit.weights.fake_ipc import FakeIpc

from parity.weights.collective import CollectiveReceiver, CollectiveTransfer, Group
from parity.weights.config import WeightsConfig
from parity.weights.direct import DirectTransfer
from parity.weights.disk import DiskReceiver, DiskTransfer
from parity.weights.host.endpoints import RunDirectory
from parity.weights.session.store import StagedStore, Store
from parity.weights.transfer import Commit, PublishReport, Transfer, Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer

BUCKET = 65536  # bytes: the smallest that the config allows
CONFIG = WeightsConfig(bucket_mib=BUCKET / 2**20, timeout_s=20)
Tensors = Sequence[tuple[str, torch.Tensor]]


async def at_once(commit: Commit) -> None:
    await commit()


def store_of(tensors: Tensors, *, like: type[StagedStore] = StagedStore, **more) -> StagedStore:
    """A store of these tensors, filled with ones."""
    served, staged = ({n: torch.ones_like(t).contiguous() for n, t in tensors} for _ in range(2))
    return like(served, staged, **more)


@dataclass
class Ends:
    """A transfer, and what it publishes to."""

    transfer: Transfer
    stores: Sequence[Store]
    failures: Callable[[], list[Sequence[str]]]  # of every receiver; [] where none has any

    def publish(self, weights: Weights | Tensors, *, version: int, switch=at_once) -> PublishReport:
        if not isinstance(weights, Weights):
            weights = Weights(weights)
        return asyncio.run(self.transfer.publish(weights, version=version, switch=switch))


@contextmanager
def direct(stores: Sequence[Store], config: WeightsConfig, folder: Path) -> Iterator[Ends]:
    yield Ends(DirectTransfer(stores, config), stores, list)


@contextmanager
def zmq_ipc_device(stores: Sequence[Store], config: WeightsConfig, folder: Path) -> Iterator[Ends]:
    ipc = FakeIpc()
    with zmq_ipc(stores, config, folder, ipc=ipc) as ends:
        yield ends
    assert ipc.is_balanced or not ipc.exported, ipc


@contextmanager
def zmq_ipc(
    stores: Sequence[Store], config: WeightsConfig, folder: Path, *, ipc: FakeIpc | None = None
) -> Iterator[Ends]:
    directory = RunDirectory.create(f"test-{secrets.token_hex(8)}")
    importer = None if ipc is None else ipc.importer()
    receivers: list[ZmqReceiver] = []
    transfer = None
    try:
        for index, store in enumerate(stores):
            receivers.append(
                ZmqReceiver(directory, store, replica=index, local_rank=0, device=importer)
            )
        addresses = [(index, 0) for index in range(len(stores))]
        exporter = None if ipc is None else ipc.exporter()
        transfer = ZmqTransfer(directory, addresses, config, device=exporter)
        yield Ends(transfer, stores, lambda: [each.failures for each in receivers])
    finally:
        if transfer is not None:
            asyncio.run(transfer.close())
        for receiver in receivers:
            receiver.close()
        directory.close()


def gloo_groups(size: int, timeout_s: float = 20) -> list[Group]:
    """The ranks of one process group, all in this process."""
    store = distributed.HashStore()
    made: dict[int, Group] = {}

    def make(rank: int) -> None:
        prefix = distributed.PrefixStore("group", store)
        group = distributed.ProcessGroupGloo(prefix, rank, size, timedelta(seconds=timeout_s))
        made[rank] = Group(group, store, rank=rank, size=size)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    return [made[rank] for rank in range(size)]


@contextmanager
def collective(stores: Sequence[Store], config: WeightsConfig, folder: Path) -> Iterator[Ends]:
    root, *others = gloo_groups(len(stores) + 1, config.timeout_s)
    receivers = [CollectiveReceiver(g, store) for g, store in zip(others, stores, strict=True)]
    transfer = CollectiveTransfer(root, config)
    try:
        yield Ends(transfer, stores, lambda: [each.failures for each in receivers])
    finally:
        asyncio.run(transfer.close())
        for receiver in receivers:
            receiver.close()


def disk_with(delta: str) -> Callable[..., AbstractContextManager[Ends]]:
    @contextmanager
    def disk(stores: Sequence[Store], config: WeightsConfig, folder: Path) -> Iterator[Ends]:
        config = replace(config, delta=delta)
        names = [f"engine-{index}" for index in range(len(stores))]
        transfer = DiskTransfer(folder, names, config)
        receivers = [
            DiskReceiver(folder, store, name=name, look_s=0.005)
            for name, store in zip(names, stores, strict=True)
        ]
        try:
            yield Ends(transfer, stores, lambda: [each.failures for each in receivers])
        finally:
            for receiver in receivers:
                receiver.close()
            asyncio.run(transfer.close())

    return disk


TRANSPORTS: Mapping[str, Callable[..., AbstractContextManager[Ends]]] = {
    "direct": direct,
    "zmq_ipc": zmq_ipc,
    "zmq_ipc_device": zmq_ipc_device,
    "collective": collective,
    "disk_full": disk_with("off"),
    "disk_xor": disk_with("xor"),
    "disk_overwrite": disk_with("overwrite"),
}


def bits(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, as bytes: NaNs compare too."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def same(store: StagedStore, tensors: Tensors) -> bool:
    """Whether the store serves exactly these."""
    return all(bits(store.served[name]) == bits(tensor) for name, tensor in tensors)
