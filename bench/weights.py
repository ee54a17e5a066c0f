"""Speed of publishing weights, beside memcpy and beside what one would write by hand.

    python -m bench.weights [--mib 1024] [--repeats 5] [--bucket-mib 16] [--json FILE]

Trainer and engine are two processes of this host with one thread each. `memcpy` is one thread
copying the same tensors into touched memory, in the same run; every ratio is against it. The
plain way pickles the state dict, sends it through a Unix socket and copies it into the model.
The table gives the best of the repeats, from the call of publish to the new version being live,
and the memory that each side needed beyond its models at its peak.
"""

import argparse
import asyncio
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path

import torch

from parity.weights.config import WeightsConfig
from parity.weights.content.ranges import copy_into
from parity.weights.direct import DirectTransfer
from parity.weights.host.endpoints import RunDirectory
from parity.weights.session.store import StagedStore
from parity.weights.transfer import Commit, Transfer, Weights
from parity.weights.zmq_ipc import ZmqReceiver, ZmqTransfer

GIB = 2**30
Tensors = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True)
class Row:
    """One way, at its best."""

    way: str
    seconds: float
    gib_per_s: float
    of_memcpy: float
    trainer_extra_mib: float | None = None
    engine_extra_mib: float | None = None


def mixed_tensors(mib: int, *, seed: int) -> Tensors:
    """About `mib` MiB like a model's: a large embedding, layers in bf16, norms, odd fp32 ones."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = [("embedding", _random((mib * 8192, 16), torch.float32, generator))]
    number = 0
    while _size(tensors) < mib * 2**20:
        prefix = f"layers.{number}"
        tensors += [
            (f"{prefix}.qkv", _random((1536, 1024), torch.bfloat16, generator)),
            (f"{prefix}.gate_up", _random((4096, 1024), torch.bfloat16, generator)),
            (f"{prefix}.down", _random((1024, 2048), torch.bfloat16, generator)),
            (f"{prefix}.norm", _random((1024,), torch.float32, generator)),
            (f"{prefix}.router", _random((1023, 33), torch.float32, generator)),
        ]
        number += 1
    return tensors


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float32, generator=generator).to(dtype)


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for _, tensor in tensors)


def empty_store(tensors: Tensors) -> StagedStore:
    """Two touched sets of memory for these tensors."""
    served, staged = ({n: torch.ones_like(t) for n, t in tensors} for _ in range(2))
    return StagedStore(served, staged)


async def at_once(commit: Commit) -> None:
    await commit()


def peak_mib() -> float:
    """The most memory that this process had since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def forget_peak() -> float:
    """Begin to measure anew; the memory that is used now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


async def best(repeats: int, once: Callable[[int], Awaitable[None]]) -> float:
    """Seconds of the fastest of the repeats; a first one warms up."""
    times: list[float] = []
    for repeat in range(repeats + 1):
        started = time.perf_counter()
        await once(repeat)
        times.append(time.perf_counter() - started)
    return min(times[1:])


async def publishing(transfer: Transfer, weights: Weights, first: int, repeats: int) -> float:
    async def once(repeat: int) -> None:
        await transfer.publish(weights, version=first + repeat, switch=at_once)

    return await best(repeats, once)


class Engine:
    """The receiving process: `python -m bench.weights --serve ...`."""

    def __init__(self, how: str, where: Path, mib: int, bucket_mib: float) -> None:
        command = [sys.executable, str(Path(__file__)), "--serve", how, "--where", str(where)]
        command += ["--mib", str(mib), "--bucket-mib", str(bucket_mib)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say("ready")

    def _say(self, expected: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().split()
        assert line and line[0] == expected, f"the engine said {line}"
        return line[-1]

    def end(self) -> float:
        """Stop it; the MiB that it needed beyond its models."""
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.flush()
        extra = float(self._say("extra"))
        self._process.wait(30)
        return extra


def serve(how: str, where: Path, mib: int) -> None:
    """Be an engine until a line comes."""
    store = empty_store(mixed_tensors(mib, seed=1))
    before = forget_peak()
    if how == "plain":
        with Listener(str(where), "AF_UNIX") as listener, listener.accept() as connection:
            print("ready", flush=True)
            while data := connection.recv_bytes():
                for name, tensor in pickle.loads(data).items():
                    store.served[name].copy_(tensor)
                connection.send_bytes(b"live")
    else:
        receiver = ZmqReceiver(RunDirectory.join(where), store, replica=0, local_rank=0)
        print("ready", flush=True)
        sys.stdin.readline()
        receiver.close()
    print("extra", peak_mib() - before, flush=True)


async def zmq_rows(
    tensors: Tensors, mib: int, bucket_mib: float, repeats: int
) -> list[tuple[str, float, float, float]]:
    rows: list[tuple[str, float, float, float]] = []
    directory = RunDirectory.create(f"bench-{time.time_ns()}")
    for verify in ("digests", "off"):
        config = WeightsConfig(verify=verify, bucket_mib=bucket_mib)
        engine = Engine("zmq_ipc", directory.path, mib, bucket_mib)
        before = forget_peak()
        transfer = ZmqTransfer(directory, [(0, 0)], config)
        seconds = await publishing(transfer, Weights(tensors), 1, repeats)
        extra = peak_mib() - before
        await transfer.close()
        rows.append((f"zmq_ipc, verify={verify}", seconds, extra, engine.end()))
    directory.close()
    return rows


async def direct_rows(tensors: Tensors, repeats: int) -> list[tuple[str, float, float]]:
    rows: list[tuple[str, float, float]] = []
    store = empty_store(tensors)
    for index, verify in enumerate(("digests", "off")):
        before = forget_peak()
        transfer = DirectTransfer([store], WeightsConfig(verify=verify))
        seconds = await publishing(transfer, Weights(tensors), 1 + index * 100, repeats)
        rows.append((f"direct, verify={verify}", seconds, peak_mib() - before))
    return rows


async def plain_row(tensors: Tensors, mib: int, repeats: int) -> tuple[str, float, float, float]:
    """What a user would write: pickle.dumps(state_dict) through a socket."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "plain.sock"
        command = [sys.executable, str(Path(__file__)), "--serve", "plain", "--where", str(where)]
        command += ["--mib", str(mib)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        while not where.exists():
            time.sleep(0.05)
        before = forget_peak()
        with Client(str(where), "AF_UNIX") as connection:
            process.stdout.readline()

            async def once(repeat: int) -> None:
                connection.send_bytes(pickle.dumps(dict(tensors), protocol=5))
                assert connection.recv_bytes() == b"live"

            seconds = await best(repeats, once)
            connection.send_bytes(b"")
            extra = float(process.stdout.readline().split()[-1])
            process.wait(30)
    return "pickle over a socket", seconds, peak_mib() - before, extra


async def memcpy_seconds(tensors: Tensors, repeats: int) -> float:
    targets = [torch.ones_like(tensor) for _, tensor in tensors]

    async def once(repeat: int) -> None:
        for target, (_, tensor) in zip(targets, tensors, strict=True):
            copy_into(target, 0, tensor.view(-1))  # numpy's memcpy

    return await best(repeats, once)


async def measure(mib: int, bucket_mib: float, repeats: int) -> list[Row]:
    tensors = mixed_tensors(mib, seed=0)
    size = _size(tensors)
    memcpy_s = await memcpy_seconds(tensors, repeats)
    found = await zmq_rows(tensors, mib, bucket_mib, repeats)
    plain = await plain_row(tensors, mib, max(1, repeats // 2))
    direct = await direct_rows(tensors, repeats)
    again_s = await memcpy_seconds(tensors, repeats)  # the machine may have changed its pace
    memcpy_s = min(memcpy_s, again_s)
    rows = [("memcpy, one thread", memcpy_s, None, None), *found]
    rows += [*((*row, None) for row in direct), plain]
    return [
        Row(way, seconds, size / seconds / GIB, memcpy_s / seconds, trainer, engine)
        for way, seconds, trainer, engine in rows
    ]


def show(rows: list[Row]) -> None:
    print(f"{'way':28} {'s':>7} {'GiB/s':>7} {'of memcpy':>9} {'extra MiB: trainer':>19} engine")
    for row in rows:
        extras = [
            "-" if value is None else f"{value:.1f}"
            for value in (row.trainer_extra_mib, row.engine_extra_mib)
        ]
        print(
            f"{row.way:28} {row.seconds:7.3f} {row.gib_per_s:7.2f} {row.of_memcpy:9.2f} "
            f"{extras[0]:>19} {extras[1]}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bucket-mib", type=float, default=WeightsConfig().bucket_mib)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", choices=("zmq_ipc", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--where", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.serve is not None:
        serve(arguments.serve, arguments.where, arguments.mib)
        return
    rows = asyncio.run(measure(arguments.mib, arguments.bucket_mib, arguments.repeats))
    print(f"{arguments.mib} MiB of mixed tensors, buckets of {arguments.bucket_mib:g} MiB")
    show(rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
