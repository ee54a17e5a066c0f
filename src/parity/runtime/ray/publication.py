"""A transport in the process of trainer rank 0, driven in two halves by the driver.

`Transfer.publish` is one call whose commit waits for `switch`; between processes that is two:
`stage` returns when every engine has verified, `commit` or `abort` ends it. Ranks that don't send
take part in gathering sharded tensors. Used by `trainer.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from parity.errors import TransferError
from parity.runtime.placement import process_name
from parity.weights.collective import CollectiveTransfer, Group
from parity.weights.config import WeightsConfig
from parity.weights.content.outgoing import participate
from parity.weights.disk import DiskTransfer
from parity.weights.host.endpoints import RunDirectory
from parity.weights.session.meeting import Circle, join
from parity.weights.transfer import PublishReport, Transfer, Weights
from parity.weights.zmq_ipc import ZmqTransfer

SENDER = process_name("trainer", 0)


@dataclass(frozen=True, slots=True)
class Way:
    """How weights reach which engines."""

    transport: str  # zmq_ipc, collective or disk
    path: str  # the run directory, the address where groups are made, or the folder of versions
    replicas: tuple[int, ...]  # that take part
    meeting_dir: str = ""  # of trainer rank 0: private to the run on its host
    circle: int = 0  # collective: the number of the process group of these replicas

    def members(self) -> Circle:
        """Who is in the process group: trainer rank 0, then the replicas by number."""
        names = (SENDER, *map(receiver_name, self.replicas))
        return Circle(f"circle-{self.circle}", names)

    def group(self, name: str, config: WeightsConfig) -> Group:
        """Make the process group, as the member of this name, together with all others."""
        circle = self.members()
        rank = circle.members.index(name)
        return join(self.path, circle, rank, timeout_s=config.timeout_s)

    def open(self, config: WeightsConfig) -> Transfer:
        """The sending end."""
        path = Path(self.path)
        if self.transport == "zmq_ipc":
            directory = RunDirectory.join(path)
            return ZmqTransfer(directory, [(replica, 0) for replica in self.replicas], config)
        if self.transport == "collective":
            return CollectiveTransfer(self.group(SENDER, config), config)
        return DiskTransfer(path, [receiver_name(replica) for replica in self.replicas], config)


def receiver_name(replica: int) -> str:
    """What an engine calls itself where receivers have names."""
    return process_name("engine", replica)


class Publication:
    """The publications of one rank, one at a time."""

    def __init__(self, *, is_sender: bool, config: WeightsConfig) -> None:
        self._is_sender = is_sender
        self._config = config
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._way: Way | None = None
        self._transfer: Transfer | None = None
        self._staged: Future[object] = Future()
        self._verdict: Future[str | None] = Future()
        self._ended: Future[PublishReport] | None = None

    def stage(self, way: Way, weights: Weights, version: int) -> None:
        """Returns when every engine has verified the version; raises what went wrong."""
        if not self._is_sender:
            participate(weights, skip=self._config.skip)
            return
        if way != self._way:
            self._close_transfer()
            self._way, self._transfer = way, way.open(self._config)
        assert self._transfer is not None
        self._staged, self._verdict = Future(), Future()
        self._ended = self._thread.submit(
            asyncio.run, self._publish(self._transfer, weights, version)
        )
        either = cast("tuple[Future[object], ...]", (self._staged, self._ended))
        wait(either, return_when=FIRST_COMPLETED)
        if not self._staged.done():
            ended, self._ended = self._ended, None
            ended.result()

    def commit(self) -> PublishReport | None:
        """Let the engines serve it; None on ranks that don't send."""
        return self._end(None)

    def abort(self, reason: str) -> None:
        """Let the engines forget it."""
        if self._ended is None:
            return
        try:
            self._end(reason)
        except TransferError as error:
            if str(error) != reason:
                raise

    def close(self) -> None:
        """Give everything back."""
        self.abort("the trainer was closed.")
        self._close_transfer()
        self._thread.shutdown()

    def _end(self, reason: str | None) -> PublishReport | None:
        if self._ended is None:
            return None
        ended, self._ended = self._ended, None
        self._verdict.set_result(reason)
        return ended.result()

    async def _publish(self, transfer: Transfer, weights: Weights, version: int) -> PublishReport:
        return await transfer.publish(weights, version=version, switch=self._switch)

    async def _switch(self, commit: Callable[[], Awaitable[None]]) -> None:
        self._staged.set_result(None)
        reason = await asyncio.wrap_future(self._verdict)
        if reason is not None:
            raise TransferError(reason)
        await commit()

    def _close_transfer(self) -> None:
        transfer, self._transfer, self._way = self._transfer, None, None
        if transfer is not None:
            self._thread.submit(asyncio.run, transfer.close()).result()
