"""Actors of a run without the run: one engine or one trainer rank in a process of its own."""

import asyncio
import dataclasses
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import ray
import torch

from parity.config.compose import load_train
from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines.config import EmbeddedEngineConfig
from parity.engines.embedded.engine import EmbeddedEngine
from parity.folder import RunFolder
from parity.platforms.cpu import CpuPlatform
from parity.platforms.detect import decide_here
from parity.runtime.config import PlacementConfig
from parity.runtime.placement import table
from parity.runtime.ray import replica as replica_module
from parity.runtime.ray.build import _start_one
from parity.runtime.ray.cluster import Cluster
from parity.runtime.ray.engine import RemoteEngine
from parity.runtime.ray.opening import Opened
from parity.runtime.ray.publication import Way
from parity.runtime.ray.setting import Setting
from parity.weights.host.endpoints import RunDirectory

TIMEOUT_S = 300.0
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no actor can import it


class Actors:
    """A local cluster with the two actors of a run of one rank and one replica."""

    def __init__(self, dir: Path, config: TrainConfig | None = None) -> None:
        """`config` is the trainer's; the engine is opened by whoever uses it."""
        if config is None:
            config = load_train("quickstart", ["runtime=ray"])
        self.config = config
        self.directory = RunDirectory.create(secrets.token_hex(6))
        self._runner = asyncio.Runner()
        self._cluster = Cluster(dir.name, address=None, private_dir=self.directory.path, cores=2)
        placed = table(PlacementConfig(), cores=2)
        setting = Setting(
            config, RunFolder(dir), CpuPlatform(), decide_here("cpu"), ThreadPlan(1, 1, "a test's")
        )
        try:
            self._runner.run(self._cluster.open(deadline_s=TIMEOUT_S))
            self._runner.run(self._cluster.reserve(placed, deadline_s=TIMEOUT_S))
            starting = {
                role: _start_one(self._cluster, setting, placed, placed.of(role)[0])
                for role in ("trainer", "engine")
            }
            self.by_role = {role: self._runner.run(made) for role, made in starting.items()}
        except BaseException:
            self.close()
            raise

    def engine(self, opener) -> RemoteEngine:
        """The engine that `opener` builds, in place of the one before; blocks."""
        actor = self.by_role["engine"]
        way = Way("zmq_ipc", str(self.directory.path), (0,))
        ray.get(actor.close.remote(), timeout=TIMEOUT_S)
        facts = ray.get(actor.open.remote(opener, way, 0, 0), timeout=TIMEOUT_S)
        return RemoteEngine("engine-0", actor, facts)

    def close(self) -> None:
        self._runner.run(self._cluster.close())
        self._runner.close()
        self.directory.close()


@dataclasses.dataclass(frozen=True)
class Letters:
    """Decodes as the contract does; a class, since processes know it by its name."""

    def __call__(self, tokens: Sequence[int]) -> str:
        return "".join(chr(97 + t) if t < 24 else chr(65 + t - 24) + "." for t in tokens)


@dataclasses.dataclass(frozen=True)
class OpenModel:
    """Opens an embedded engine on a model that travels with it."""

    model: torch.nn.Module
    config: EmbeddedEngineConfig
    max_length: int
    eos: tuple[int, ...]

    def __call__(self, config, *, device, threads, version, rest_dir) -> Opened:
        replica_module._TAKE_S = 0.005  # counters that are fresh, for tests that wait for tokens
        engine = EmbeddedEngine(
            self.model,
            config=self.config,
            max_length=self.max_length,
            eos_token_ids=frozenset(self.eos),
            decode=Letters(),
            device=device,
            threads=threads,
        )
        return Opened(engine, self.eos)
