"""Starts the processes of a run on Ray and wires the driver's views of them.

Used by `parity/build.py` where `runtime=ray`: `open_ray` gives what takes the place of one
process's own trainer, engine and transport, and ends all of it in the reverse order.

    cluster   started or joined           table    printed, then asked for
    actors    all started at once         trainer  goes on from its checkpoint
    weights   published once, as the proof that the way works, before anything is generated
"""

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ray

from parity.config import environment
from parity.config.saved import absolute
from parity.config.schema import TrainConfig
from parity.config.threads import available_cores
from parity.engines.engine import Engine
from parity.engines.router import Router
from parity.errors import ParityError
from parity.runtime.inline import InlineRuntime
from parity.runtime.placement import Table, table
from parity.runtime.ray.calls import Calls
from parity.runtime.ray.cluster import VARIABLES, Cluster
from parity.runtime.ray.engine import RemoteEngine
from parity.runtime.ray.publication import Way
from parity.runtime.ray.replica import EngineFacts, EngineReplica
from parity.runtime.ray.role import Actor
from parity.runtime.ray.setting import Setting
from parity.runtime.ray.trainer import Meeting, RemoteTrainer, TrainerRank
from parity.runtime.ray.transfer import RankTransfer, choose_transport
from parity.weights.host.endpoints import RunDirectory
from parity.weights.transfer import Weights

log = logging.getLogger(__name__)
_CLOSE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class RayParts:
    """The driver's views of the processes."""

    runtime: "RayRuntime"
    trainer: RemoteTrainer
    engine: Engine
    stop_token_ids: tuple[int, ...]
    transfer: RankTransfer


class RayRuntime(InlineRuntime):
    """The trainer's thread of the driver, which waits for the ranks instead of computing."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(trainer_threads=1)
        self._calls = calls

    async def close(self) -> None:
        """End the waiting: the ranks end with the cluster."""
        self._calls.stop()
        await super().close()


@asynccontextmanager
async def open_ray(
    setting: Setting,
    *,
    checkpoint: Path | None,
    version: int,
    tell: Callable[[str], None],
) -> AsyncGenerator[RayParts]:
    """Every process of the run, ready: trainer and engines hold the weights of `version`.

    Args:
        setting: what the processes are made with.
        checkpoint: of the trainer's state; None: the model of the run file.
        version: which version the trainer's weights are.
        tell: shows a line to the user.
    """
    setting = dataclasses.replace(setting, config=with_absolute_paths(setting.config))
    config = setting.config
    limit_s = config.placement.start_timeout_s
    name = f"{setting.folder.name}-{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        cluster = await _open_cluster(name, stack, limit_s)
        cores = max(node.get("CPU", 0.0) for node in cluster.nodes())
        placed = table(config.placement, cores=cores, device=setting.platform.ray_resource)
        for line in placed.lines():
            tell(line)
            log.info("event=placed %s", line)
        await cluster.reserve(placed, deadline_s=limit_s)
        actors = await _start(cluster, setting, placed)
        calls = Calls(str(setting.logs_dir))
        runtime = RayRuntime(calls)
        stack.push_async_callback(runtime.close)
        ranks = {seat.name: actors[seat.name] for seat in placed.of("trainer")}
        replicas = {seat.name: actors[seat.name] for seat in placed.of("engine")}
        trainer = RemoteTrainer(ranks, calls, config)
        way = await _way(setting, placed, calls, ranks, name)
        stack.push_async_callback(_farewell, calls, {**replicas, **ranks})
        facts = await _open_roles(setting, placed, calls, actors, way=way, version=version - 1)
        if checkpoint is not None:
            await runtime.in_trainer(partial(trainer.load, checkpoint))
        engines = {n: RemoteEngine(n, actor, facts[n]) for n, actor in replicas.items()}
        transfer = RankTransfer(
            trainer,
            way,
            engines=list(engines.values()),
            timeout_s=config.supervise.publish_timeout_s,
        )
        await transfer.publish(Weights(()), version=version, switch=lambda commit: commit())
        for engine in engines.values():
            await engine.check()
        engine = next(iter(engines.values()))
        if len(engines) > 1:
            engine = transfer.router = Router(engines, seed=config.seed)
        stop = next(iter(facts.values())).stop_token_ids
        yield RayParts(
            runtime=runtime,
            trainer=trainer,
            engine=engine,
            stop_token_ids=stop,
            transfer=transfer,
        )


async def _open_cluster(name: str, stack: AsyncExitStack, limit_s: float) -> Cluster:
    environment.set_unless_set(VARIABLES)
    directory = RunDirectory.create(name)
    stack.callback(directory.close)
    cluster = Cluster(
        name,
        address=environment.ray_address(),
        private_dir=directory.path,
        cores=available_cores(),
    )
    stack.push_async_callback(cluster.close)
    await cluster.open(deadline_s=limit_s)
    return cluster


async def _start(cluster: Cluster, setting: Setting, placed: Table) -> dict[str, Actor]:
    """All actors, coming up side by side."""
    actors: dict[str, Actor] = {}
    for seat in placed.seats:
        actors[seat.name] = await cluster.start(
            TrainerRank if seat.role == "trainer" else EngineReplica,
            (setting.role(seat), setting.config),
            seat=seat,
            table=placed,
            variables=setting.variables(
                seat, ray_version=ray.__version__, is_one_host=placed.num_nodes == 1
            ),
        )
    return actors


async def _way(
    setting: Setting, placed: Table, calls: Calls, ranks: Mapping[str, Actor], name: str
) -> Way:
    """How weights travel; where ranks and engines of one host meet is rank 0's to make."""
    config = setting.config
    transport, reason = choose_transport(
        config.weights.transport, is_one_host=placed.num_nodes == 1
    )
    log.info("event=transport_chosen transport=%s reason=%s", transport, reason)
    replicas = tuple(seat.index for seat in placed.of("engine"))
    first, rank = next(iter(ranks.items()))
    made = await calls.gather(
        {first: rank.make_directory.remote(f"{name}/weights")},
        "come up",
        deadline_s=config.placement.start_timeout_s,
    )
    path = made[first]
    if transport == "disk":
        path = config.weights.dir or str((setting.folder.path / "weights").absolute())
    return Way(transport, path, replicas, meeting_dir=made[first])


async def _open_roles(
    setting: Setting,
    placed: Table,
    calls: Calls,
    actors: Mapping[str, Actor],
    *,
    way: Way,
    version: int,
) -> dict[str, EngineFacts]:
    """Let every process load its model, all at once; what the engines say of themselves."""
    trainers, engines = placed.of("trainer"), placed.of("engine")
    limit_s = setting.config.placement.start_timeout_s
    address: str | None = None
    if placed.num_nodes > 1:
        first = trainers[0].name
        given = await calls.gather(
            {first: actors[first].free_address.remote()}, "find an address", deadline_s=limit_s
        )
        address = given[first]
    path = str(Path(way.meeting_dir) / "ranks") if address is None else None
    opening = {
        seat.name: actors[seat.name].open.remote(
            Meeting(seat.index, len(trainers), path=path, address=address)
        )
        for seat in trainers
    }
    opening |= {
        seat.name: actors[seat.name].open.remote(setting.opener, way, seat.index, version)
        for seat in engines
    }
    answers = await calls.gather(opening, "load the model", deadline_s=limit_s)
    return {seat.name: answers[seat.name] for seat in engines}


async def _farewell(calls: Calls, actors: Mapping[str, Actor]) -> None:
    """Let the processes remove what they own, as far as they still can; then they are ended."""
    with contextlib.suppress(ParityError):
        await Calls(calls.logs_dir).gather(
            {name: actor.close.remote() for name, actor in actors.items()},
            "close",
            deadline_s=_CLOSE_S,
        )


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The config for processes with another working directory."""
    model = dataclasses.replace(config.model, path=absolute(config.model.path))
    return dataclasses.replace(config, model=model)
