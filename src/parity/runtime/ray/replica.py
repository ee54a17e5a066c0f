"""An engine in a process of its own, with the receiving end of the weights beside it.

`EngineReplica` is the actor, `engine.py` is the driver's view of it. Its event loop is the
actor's; the engine decodes in its own thread, the receiver takes weights in another one.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from parity.models import heavy

with heavy.imports():  # an actor's process begins with this module
    from parity.config.schema import TrainConfig
    from parity.engines.engine import Engine, EngineCapabilities, EngineStats, SleepLevel
    from parity.errors import EngineError, ParityError
    from parity.platforms.memory.resident import held_bytes
    from parity.runtime.ray.opening import Opened, Opener
    from parity.runtime.ray.publication import Way, receiver_name
    from parity.runtime.ray.role import Told, enter
    from parity.runtime.ray.setting import Role
    from parity.types import Completion, Sampling
    from parity.weights.collective import CollectiveReceiver
    from parity.weights.disk import DiskReceiver
    from parity.weights.host.endpoints import RunDirectory
    from parity.weights.session.engine_store import EngineStore
    from parity.weights.zmq_ipc import ZmqReceiver

if TYPE_CHECKING:
    import torch

    from parity.weights.manifest import Manifest

log = logging.getLogger(__name__)
_TAKE_S = 0.5  # longest wait of one `take`: how old the driver's counters get
Asked = tuple[str, tuple[int, ...], Sampling]
Ended = tuple[str, Completion | ParityError]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the driver needs to know of a replica."""

    capabilities: EngineCapabilities
    version: int
    max_length: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """What ended since the last `take`, in order, and how the engine stands."""

    ended: list[Ended]
    stats: EngineStats
    version: int
    told: Told = ()


class Receiver(Protocol):
    """The receiving end of a transport."""

    def close(self) -> None:
        """End it and remove what it owns."""
        ...


class EngineReplica:
    """One engine; its methods are called by the driver, any number at once."""

    def __init__(self, role: Role, config: TrainConfig) -> None:
        self._role = role
        self._config = config
        self._platform, self._device, self._relay = enter(role)
        self._opened: Opened | None = None
        self._receiver: Receiver | None = None
        self._store: EngineStore | None = None
        self._joining = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: list[Ended] = []
        self._has_ended = asyncio.Event()

    async def open(self, opener: Opener, way: Way, replica: int, version: int) -> EngineFacts:
        """Build the engine, and listen for weights; what the driver needs to know."""
        self._opened = await asyncio.to_thread(
            opener,
            self._config,
            device=self._device,
            threads=self._role.threads,
            version=version,
            rest_dir=Path(self._role.rest_dir),
        )
        self._ended.clear()  # of an engine that was closed before
        limit_s = self._config.weights.timeout_s
        store = EngineStore(self.engine, asyncio.get_running_loop(), timeout_s=limit_s)
        self._store = store
        if way.transport == "zmq_ipc":
            directory = RunDirectory.join(Path(way.path))
            self._receiver = ZmqReceiver(directory, store, replica=replica, local_rank=0)
        elif way.transport == "disk":
            self._receiver = DiskReceiver(Path(way.path), store, name=receiver_name(replica))
        engine = self.engine
        return EngineFacts(
            engine.capabilities, engine.version, engine.max_length, self._opened.stop_token_ids
        )

    async def join(self, way: Way) -> None:
        """Be in the process group of the next publications, made together with its others.

        Raises DeadlineError or TransferError that says who wasn't there.
        """
        assert self._store is not None, "open comes first"
        async with self._joining:
            await self._end_receiver()
            group = await asyncio.to_thread(way.group, self._role.name, self._config.weights)
            self._receiver = CollectiveReceiver(group, self._store)

    async def submit(self, batch: Sequence[Asked]) -> None:
        """Begin requests, in this order."""
        for asked in batch:
            task = asyncio.create_task(self._serve(*asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: str, tokens: tuple[int, ...], sampling: Sampling) -> None:
        outcome: Completion | ParityError
        try:
            outcome = await self.engine.generate(tokens, sampling, request_id=name)
        except ParityError as error:
            outcome = plain(error)
        except Exception as error:
            log.exception("event=request_failed request=%s", name)
            outcome = EngineError(f"{self._role.name} failed ({type(error).__name__}: {error}).")
        self._ended.append((name, outcome))
        self._has_ended.set()

    async def take(self) -> Taken:
        """What ended since the last call; waits a little where nothing has."""
        if not self._ended:
            self._has_ended.clear()
            try:
                async with asyncio.timeout(_TAKE_S):
                    await self._has_ended.wait()
            except TimeoutError:
                pass
        ended, self._ended = self._ended, []
        engine = self.engine
        return Taken(ended, engine.stats(), engine.version, self._relay.take())

    async def check(self) -> int:
        """The version that is served."""
        return await self.engine.check()

    async def abort(self, request_id: str) -> None:
        """End a request with the tokens it has."""
        await self.engine.abort(request_id)

    async def pause(self) -> None:
        """Stop between two tokens."""
        await self.engine.pause()

    async def resume(self) -> None:
        """Go on."""
        await self.engine.resume()

    async def sleep(self, level: SleepLevel) -> None:
        """Give up memory."""
        await self.engine.sleep(level)

    async def wake(self) -> None:
        """Take the memory again."""
        await self.engine.wake()

    async def held_bytes(self) -> int:
        """Memory that this process holds on its device; of a CPU all that is resident."""
        return held_bytes(self._device)

    async def drain(self) -> None:
        """Wait until there is no request."""
        await self.engine.drain()

    async def begin_load(self, manifest: "Manifest") -> None:
        """Begin a publication that comes through the driver."""
        await self.engine.begin_load(manifest)

    async def load(self, tensors: "list[tuple[str, torch.Tensor]]") -> None:
        """Take tensors."""
        await self.engine.load(tensors)

    async def commit_load(self, version: int) -> None:
        """Serve them."""
        await self.engine.commit_load(version)

    async def abort_load(self, reason: str) -> None:
        """Forget them."""
        await self.engine.abort_load(reason)

    async def close(self) -> None:
        """End every request and every `take`, and give sockets and memory back."""
        self._has_ended.set()
        await self._end_receiver()
        if self._opened is not None:
            await self._opened.engine.close()

    async def _end_receiver(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            await asyncio.to_thread(receiver.close)

    @property
    def engine(self) -> Engine:
        """The engine, once it is open."""
        assert self._opened is not None, "open comes first"
        return self._opened.engine


def plain(error: ParityError) -> ParityError:
    """The error as one that can be pickled: its class and its sentence, without a cause."""
    return type(error)(str(error))
