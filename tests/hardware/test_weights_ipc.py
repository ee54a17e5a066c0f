"""Weights reach an engine in another process through device memory, bit for bit, and are let go.

What the stand-in of tests/unit/weights/fake_ipc.py can't show: handles of the real runtime, and
streams of two processes that know nothing of each other.
"""

import asyncio
import multiprocessing
import secrets
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from parity.ci.register import register_cuda_ci, register_npu_ci, register_rocm_ci
from parity.platforms.collect import collect
from parity.platforms.detect import decide, load
from parity.weights.config import WeightsConfig
from parity.weights.host.buckets import DeviceMemory
from parity.weights.host.endpoints import RunDirectory
from parity.weights.session.store import StagedStore
from parity.weights.transfer import Commit, Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer

register_cuda_ci(est_time=60, suite="cuda-1", labels=["weights", "platform"])
register_rocm_ci(est_time=70, suite="rocm-1", labels=["weights", "platform"])
register_npu_ci(est_time=80, suite="npu-1", labels=["weights", "platform"])

FACTS = collect()
DECISION = decide(FACTS)
if DECISION.platform == "cpu" or not DECISION.is_usable_here:
    pytest.skip(f"needs an accelerator: {'; '.join(DECISION.reasons)}", allow_module_level=True)
CONFIG = WeightsConfig(bucket_mib=1.0, timeout_s=30)
ROUNDS = 5


def device_memory() -> DeviceMemory:
    platform = load(DECISION.platform)
    platform.set_device(0)
    found = DeviceMemory.of(platform, FACTS, 0)
    if found is None:
        pytest.skip(platform.ipc_support(FACTS).reason)
    return found


def tensors(version: int, device: torch.device) -> list[tuple[str, torch.Tensor]]:
    """Larger than a bucket, strided, of several dtypes, and other values for each version."""
    noise = torch.Generator().manual_seed(version)
    made = [
        ("large", torch.randn(1_000_003, generator=noise)),
        ("half", torch.randn(513, 257, generator=noise).bfloat16().t()),
        ("number", torch.randn((), generator=noise)),
        ("ids", torch.randint(0, 99, (77,), generator=noise)),
    ]
    return [(name, tensor.to(device)) for name, tensor in made]


def engine(where: str, pipe: Connection) -> None:
    """Serve a store on the device; tell its digests whenever asked, end at a word."""
    memory = device_memory()
    model = tensors(0, memory.device)
    served, staged = ({n: torch.ones_like(t).contiguous() for n, t in model} for _ in range(2))
    store = StagedStore(served, staged)
    directory = RunDirectory.join(Path(where))
    receiver = ZmqReceiver(directory, store, replica=0, local_rank=0, device=memory)
    pipe.send("ready")
    while pipe.recv() == "digests":
        pipe.send((store.version, dict(store.served_digests())))
    receiver.close()
    pipe.send("closed")


async def at_once(commit: Commit) -> None:
    await commit()


@pytest.mark.parametrize("verify", ["digests", "off"])
def test_weights_arrive_through_device_memory_bit_for_bit(verify: str) -> None:
    from parity.weights.content.digest import digest_of

    memory = device_memory()
    directory = RunDirectory.create(f"hardware-{secrets.token_hex(8)}")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=engine, args=(str(directory.path), theirs), daemon=True)
    other.start()
    try:
        assert ours.poll(120), "the engine's process says nothing"
        assert ours.recv() == "ready"
        config = replace(CONFIG, verify=verify)
        transfer = ZmqTransfer(directory, [(0, 0)], config, device=memory)
        for version in range(1, ROUNDS + 1):
            sent = tensors(version, memory.device)
            weights = Weights(sent)
            asyncio.run(transfer.publish(weights, version=version, switch=at_once))
            ours.send("digests")
            assert ours.recv() == (version, {name: digest_of(tensor) for name, tensor in sent})
        asyncio.run(transfer.close())
        ours.send("end")
        assert ours.poll(60), "the engine's process doesn't end"
        assert ours.recv() == "closed"
    finally:
        other.kill()
        other.join(10)
        directory.close()
