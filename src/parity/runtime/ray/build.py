"""Starts the processes of a run on Ray and wires the driver's views of them.

Used by `parity/build.py` where `runtime=ray`: `open_ray` gives what takes the place of one
process's own trainer, engine and transport, and ends all of it in the reverse order.

    cluster   started or joined           table    printed, then asked for
    actors    all started at once         trainer  goes on from its checkpoint
    weights   published once, as the proof that the way works, before anything is generated;
              where trainer and engines share devices, from the state in between two turns
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
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
from parity.errors import EngineLostError, ParityError
from parity.runtime.inline import InlineRuntime
from parity.runtime.placement import Seat, Table, table
from parity.runtime.ray.calls import Calls
from parity.runtime.ray.cluster import VARIABLES, Cluster
from parity.runtime.ray.engine import RemoteEngine
from parity.runtime.ray.publication import Way
from parity.runtime.ray.replica import EngineFacts, EngineReplica
from parity.runtime.ray.revival import ClusterPlaces, Revival
from parity.runtime.ray.role import Actor
from parity.runtime.ray.setting import Setting
from parity.runtime.ray.shared import check_folders
from parity.runtime.ray.trainer import RanksMeeting, RemoteTrainer, TrainerRank
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
    memory: "RoleMemory"


class RoleMemory:
    """What the processes of a role say that they hold; of those that live."""

    def __init__(self, trainer: RemoteTrainer, engines: Sequence[RemoteEngine]) -> None:
        """`engines` are by number; one that was started again takes its place there."""
        self._trainer = trainer
        self._engines = engines

    async def of_engines(self) -> int | None:
        """Of the engine that holds the most; None where none is left."""
        answers = await asyncio.gather(
            *(engine.held_bytes() for engine in self._engines if not engine.is_lost),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineLostError):
                raise answer
        return max((answer for answer in answers if isinstance(answer, int)), default=None)

    def of_trainer(self) -> int:
        """Of the rank that holds the most."""
        return self._trainer.held_bytes()


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
    name = f"{setting.folder.name}-{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        cluster = await _open_cluster(name, stack, config.placement.start_timeout_s)
        placed = await _place(cluster, setting, tell)
        calls = Calls(str(setting.logs_dir))
        actors = await _start(cluster, setting, placed, calls)
        runtime = RayRuntime(calls)
        stack.push_async_callback(runtime.close)
        ranks = {seat.name: actors[seat.name] for seat in placed.of("trainer")}
        replicas = {seat.name: actors[seat.name] for seat in placed.of("engine")}
        trainer = RemoteTrainer(ranks, calls, config)
        way = await _way(setting, placed, calls, ranks, name)
        await check_folders(cluster, placed, setting, way, calls, actors)
        stack.push_async_callback(_farewell, calls, actors)
        lifting = partial(_lift, runtime, trainer, checkpoint, takes_turns=placed.has_pairs)
        facts = await _open_roles(
            setting, placed, calls, actors, way=way, version=version - 1, lift=lifting
        )
        # By number; one that comes back takes its place there.
        engines = [RemoteEngine(name, actor, facts[name]) for name, actor in replicas.items()]
        transfer = RankTransfer(
            trainer, way, engines=engines, timeout_s=config.supervise.publish_timeout_s
        )
        if placed.has_pairs:
            await _begin_publication(runtime, trainer, engines)
        await _prove(transfer, engines, version=version)
        engine: Engine = engines[0]
        if len(engines) > 1:
            start = partial(_start_one, cluster, setting, placed)
            places = ClusterPlaces(
                placed.of("engine"), actors, start, setting, calls, way, version - 1
            )
            engine = _routed(engines, transfer, places, stack)
        yield RayParts(
            runtime=runtime,
            trainer=trainer,
            engine=engine,
            stop_token_ids=next(iter(facts.values())).stop_token_ids,
            transfer=transfer,
            memory=RoleMemory(trainer, engines),
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


async def _place(cluster: Cluster, setting: Setting, tell: Callable[[str], None]) -> Table:
    """The table of the run, shown, and reserved in the cluster."""
    placement = setting.config.placement
    cores = max(node.get("CPU", 0.0) for node in cluster.nodes())
    placed = table(placement, cores=cores, device=setting.platform.ray_resource)
    for line in placed.lines():
        tell(line)
        log.info("event=placed %s", line)
    await cluster.reserve(placed, deadline_s=placement.start_timeout_s)
    return placed


async def _start(
    cluster: Cluster, setting: Setting, placed: Table, calls: Calls
) -> dict[str, Actor]:
    """All actors, coming up side by side; a guest once its host says which device it was given."""
    starting = partial(_start_one, cluster, setting, placed)
    guests = [seat for seat in placed.seats if seat.is_guest]
    if setting.platform.ray_resource is None:  # a share of the CPUs needs no name
        return {seat.name: await starting(seat) for seat in placed.seats}
    actors = {seat.name: await starting(seat) for seat in placed.seats if not seat.is_guest}
    hosts = {placed.host_of(guest).name for guest in guests}
    devices = await calls.gather(
        {name: actors[name].device_id.remote() for name in hosts},
        "come up",
        deadline_s=setting.config.placement.start_timeout_s,
    )
    for guest in guests:
        device_id = devices[placed.host_of(guest).name]
        actors[guest.name] = await starting(guest, device_id=device_id)
    return actors


async def _start_one(
    cluster: Cluster, setting: Setting, placed: Table, seat: Seat, *, device_id: str | None = None
) -> Actor:
    """The actor of a seat, coming up; `device_id` is the device of a guest."""
    return await cluster.start(
        TrainerRank if seat.role == "trainer" else EngineReplica,
        (setting.role(seat, device_id=device_id), setting.config),
        seat=seat,
        table=placed,
        variables=setting.variables(
            seat, ray_version=ray.__version__, is_one_host=placed.num_nodes == 1
        ),
    )


async def _way(
    setting: Setting, placed: Table, calls: Calls, ranks: Mapping[str, Actor], name: str
) -> Way:
    """How weights travel; where ranks and engines of one host meet is rank 0's to make."""
    config = setting.config
    is_one_host = placed.num_nodes == 1
    transport, reason = choose_transport(
        config.weights.transport, is_one_host=is_one_host, has_dir=config.weights.dir is not None
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
    elif transport == "collective":
        met = await calls.gather(
            {first: rank.meet_engines.remote(is_one_host=is_one_host)},
            "serve a store",
            deadline_s=config.placement.start_timeout_s,
        )
        path = met[first]
    return Way(transport, path, replicas, meeting_dir=made[first])


async def _open_roles(
    setting: Setting,
    placed: Table,
    calls: Calls,
    actors: Mapping[str, Actor],
    *,
    way: Way,
    version: int,
    lift: Callable[[], Awaitable[None]],
) -> dict[str, EngineFacts]:
    """Let every process load its model; what the engines say of themselves.

    All at once, but where devices are shared: there the engines come when `lift`, which brings an
    open trainer to its checkpoint, has let it rest.
    """
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
            RanksMeeting(seat.index, len(trainers), path=path, address=address)
        )
        for seat in trainers
    }
    if placed.has_pairs:
        await calls.gather(opening, "load the model", deadline_s=limit_s)
        await lift()
        opening = {}
    opening |= {
        seat.name: actors[seat.name].open.remote(setting.opener, way, seat.index, version)
        for seat in engines
    }
    answers = await calls.gather(opening, "load the model", deadline_s=limit_s)
    if not placed.has_pairs:
        await lift()
    return {seat.name: answers[seat.name] for seat in engines}


async def _begin_publication(
    runtime: RayRuntime, trainer: RemoteTrainer, engines: Sequence[RemoteEngine]
) -> None:
    """From the engines' turn: they sleep, and of the trainer the weights alone are loaded."""
    await asyncio.gather(*(engine.sleep(2) for engine in engines))
    await runtime.in_trainer(trainer.reload)
    await runtime.in_trainer(partial(trainer.offload, keeps_weights=True))


async def _prove(transfer: RankTransfer, engines: Sequence[RemoteEngine], *, version: int) -> None:
    """Publish once, before anything is generated."""
    await transfer.publish(Weights(()), version=version, switch=lambda commit: commit())
    for engine in engines:
        await engine.check()


async def _lift(
    runtime: RayRuntime, trainer: RemoteTrainer, checkpoint: Path | None, *, takes_turns: bool
) -> None:
    """Bring a trainer to its checkpoint, and let it rest where the engines' turn is next."""
    if checkpoint is not None:
        await runtime.in_trainer(partial(trainer.load, checkpoint))
    if takes_turns:
        await runtime.in_trainer(trainer.offload)


def _routed(
    engines: list[RemoteEngine],
    transfer: RankTransfer,
    places: ClusterPlaces,
    stack: AsyncExitStack,
) -> Router:
    """Several engines as one, each started again where it is lost."""
    config = places.setting.config
    by_name = {engine.name: engine for engine in engines}
    router = Router(by_name, config.placement.router, seed=config.seed)
    revival = Revival(engines, router, places, restarts=config.placement.restarts)
    stack.push_async_callback(revival.close)
    revival.begin()
    transfer.router, transfer.revival = router, revival
    return router


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
