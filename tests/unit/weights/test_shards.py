"""Sharded tensors are gathered one at a time, in step on all ranks, and sent by rank 0."""

import asyncio
import multiprocessing
import os
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from unit.weights.ends import CONFIG, at_once, same, store_of

from parity.errors import TransferError
from parity.weights.content.outgoing import participate
from parity.weights.direct import DirectTransfer
from parity.weights.transfer import Weights

WHOLE = [
    ("uneven", torch.arange(35.0).view(7, 5)),
    ("columns", torch.arange(24.0).view(4, 6)),
    ("plain", torch.arange(3)),
    ("last", torch.arange(10.0)),
]


def trainer_rank(rank: int, path: str, answers) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(path, 2)
    limit = timedelta(seconds=60)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    mesh = init_device_mesh("cpu", (2,))
    dims = {"uneven": 0, "columns": 1, "last": 0}
    tensors = [
        (name, distribute_tensor(t, mesh, [Shard(dims[name])]) if name in dims else t)
        for name, t in WHOLE
    ]
    weights = Weights(tensors)
    if rank:
        for _ in range(3):
            participate(weights)
        answers.put("followed")
    else:
        answers.put(publish(weights))
    distributed.destroy_process_group()


def publish(weights: Weights) -> str:
    """A refused publication between two good ones: the other rank is never left waiting."""
    store = store_of(WHOLE)
    transfer = DirectTransfer([store], CONFIG)
    asyncio.run(transfer.publish(weights, version=1, switch=at_once))
    try:
        asyncio.run(transfer.publish(weights, version=1, switch=at_once))
    except TransferError as error:
        assert "newer" in str(error)
    asyncio.run(transfer.publish(weights, version=2, switch=at_once))
    return "same" if same(store, WHOLE) else "different"


def test_shards_of_two_ranks_arrive_whole_also_after_a_refusal(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [
        context.Process(target=trainer_rank, args=(rank, str(tmp_path / "store"), answers))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    assert {answers.get(timeout=120) for _ in ranks} == {"followed", "same"}
    for rank in ranks:
        rank.join(20)
        assert rank.exitcode == 0
