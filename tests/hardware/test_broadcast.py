"""Every device of a runner takes part in a collective, and all ranks hold the same weights after.

It also shows that the runner's containers see exactly the devices that their suite was given.
"""

import hashlib
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hardware.device import num_devices, platform_name, torch_device

from parity.ci.register import register_rocm_ci

register_rocm_ci(est_time=90, suite="rocm-4", labels=["weights", "platform"])

TENSORS, ELEMENTS = 8, 1_000_003  # an odd size: no multiple of any bucket
BACKENDS = {"cpu": "gloo", "npu": "hccl"}


def rank_main(rank: int, world: int, port: int, results: "mp.SimpleQueue[tuple[int, str]]") -> None:
    device = torch_device(rank)
    if device.type != "cpu":
        torch.accelerator.set_device_index(rank)
    store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0)
    backend = BACKENDS.get(platform_name(), "nccl")
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    generator = torch.Generator().manual_seed(rank)
    weights = [torch.randn(ELEMENTS, generator=generator).to(device) for _ in range(TENSORS)]
    for tensor in weights:
        dist.broadcast(tensor, src=0)
    total = torch.full((1,), float(rank + 1), device=device)
    dist.all_reduce(total)
    assert total.item() == world * (world + 1) / 2
    digest = hashlib.sha256(b"".join(each.cpu().numpy().tobytes() for each in weights))
    results.put((rank, digest.hexdigest()))
    dist.destroy_process_group()


def test_a_broadcast_leaves_the_same_weights_on_every_device() -> None:
    world = num_devices()
    expected = 4 if os.environ.get("PARITY_CI_SUITE") == "rocm-4" else 2
    assert world >= expected, f"{world} devices are visible, and {expected} are needed"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(rank_main, args=(world, port, results), nprocs=world)
    digests = dict(results.get() for _ in range(world))
    assert sorted(digests) == list(range(world))
    assert len(set(digests.values())) == 1
