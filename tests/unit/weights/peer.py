"""One end of a transport in a process of its own, to be killed by tests.

`receive` serves a store until its pipe is closed, `send` publishes version after version; both
say each version. `where` is the run directory (zmq_ipc), the folder (disk) or host:port of a TCP
store (collective). Started through a fork server, because importing torch takes seconds.
Version v holds v in every element, so a mixture of versions shows.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import distributed
from unit.weights.ends import CONFIG as SLOW
from unit.weights.ends import at_once, store_of

from parity.weights.collective import CollectiveReceiver, CollectiveTransfer, Group
from parity.weights.disk import DiskReceiver, DiskTransfer
from parity.weights.host.endpoints import RunDirectory
from parity.weights.transfer import Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer

CONFIG = replace(SLOW, timeout_s=5.0, commit_timeout_s=5.0)


def tensors(value: int) -> list[tuple[str, torch.Tensor]]:
    return [(f"t{n}", torch.full((400, 100), float(value))) for n in range(8)]


def group_at(where: str, rank: int) -> Group:
    host, _, port = where.partition(":")
    store = distributed.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
    prefix = distributed.PrefixStore("group", store)
    made = distributed.ProcessGroupGloo(prefix, rank, 2, timedelta(seconds=60))
    return Group(made, store, rank=rank, size=2)


def receive(transport: str, where: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    store = store_of(tensors(0))
    if transport == "zmq_ipc":
        receiver = ZmqReceiver(RunDirectory.join(Path(where)), store, replica=0, local_rank=0)
    elif transport == "disk":
        receiver = DiskReceiver(Path(where), store, name="engine", look_s=0.005)
    else:
        receiver = CollectiveReceiver(group_at(where, 1), store)
    pipe.send("ready")
    shown = 0
    while not pipe.poll(0.01):
        if store.version != shown:
            shown = store.version
            pipe.send(f"version {shown}")
    receiver.close()


def send(transport: str, where: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    asyncio.run(_send(transport, where, pipe.send))


async def _send(transport: str, where: str, say: Callable[[str], None]) -> None:
    if transport == "zmq_ipc":
        transfer = ZmqTransfer(RunDirectory.join(Path(where)), [(0, 0)], CONFIG)
    elif transport == "disk":
        transfer = DiskTransfer(Path(where), ["engine"], CONFIG)
    else:
        transfer = CollectiveTransfer(group_at(where, 0), CONFIG)
    for version in range(1, 100_000):
        await transfer.publish(Weights(tensors(version)), version=version, switch=at_once)
        say(f"version {version}")
