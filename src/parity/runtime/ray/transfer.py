"""The driver's end of a publication: trainer ranks send, engine replicas receive.

    all ranks: stage(version)    rank 0 sends over the transport, the others help to gather
    switch(commit)               when in_flight allows; commit is rank 0's
    or abort(reason)             everywhere

A replica that died or fell silent before the commit is left out and the publication begins again
with those that answer: the version is live in every replica that is in use. Newcomers
(`revival.py`) take part in it and may break it once; then it begins again without them. The
transport is chosen by placement.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from parity.engines.router import Router
from parity.errors import (
    DeadlineError,
    ParityError,
    RoleError,
    TransferError,
    UnsupportedError,
)
from parity.runtime.ray.circles import Circles
from parity.runtime.ray.engine import RemoteEngine
from parity.runtime.ray.publication import Way
from parity.runtime.ray.revival import Revival
from parity.runtime.ray.role import Actor
from parity.runtime.ray.trainer import RemoteTrainer
from parity.weights.config import Transport
from parity.weights.transfer import PublishReport, Switch, Transfer, Weights

log = logging.getLogger(__name__)
_ABORT_S = 30.0
_CHECK_S = 10.0


def choose_transport(
    wanted: Transport, *, is_one_host: bool, has_dir: bool = False
) -> tuple[str, str]:
    """The transport between these processes, and why.

    Between hosts a folder is relied on only where it was named: whether all see the run folder
    can't be known, and the network between trainer rank 0 and the engines is there in any case.

    Args:
        wanted: `weights.transport`.
        is_one_host: whether all processes are on one.
        has_dir: whether `weights.dir` names a folder.

    Raises UnsupportedError for one that can't reach every engine from here.
    """
    if wanted == "auto":
        if is_one_host:
            return "zmq_ipc", "trainer rank 0 and all engines are on one host"
        if has_dir:
            return "disk", "engines are on other hosts than trainer rank 0, weights.dir is given"
        return "collective", "engines are on other hosts than trainer rank 0, no weights.dir given"
    if wanted == "zmq_ipc" and not is_one_host:
        raise UnsupportedError(
            "weights.transport is 'zmq_ipc', which stays on one host, and placement puts engines "
            "on other hosts than trainer rank 0; set weights.transport=collective, or disk with "
            "weights.dir in a folder that all hosts see."
        )
    if wanted not in ("zmq_ipc", "collective", "disk"):
        raise UnsupportedError(
            f"weights.transport is {wanted!r}, which doesn't leave its process; set "
            "weights.transport=auto, zmq_ipc, collective or disk."
        )
    return wanted, f"weights.transport={wanted} was set"


class RankTransfer(Transfer):
    """Publishes from the trainer's ranks to the replicas that live."""

    def __init__(
        self,
        trainer: RemoteTrainer,
        way: Way,
        *,
        engines: Sequence[RemoteEngine],
        timeout_s: float,
    ) -> None:
        """
        Args:
            trainer: whose ranks send.
            way: the transport, to all replicas.
            engines: the driver's views of the replicas, by number.
            timeout_s: longest time of one publication.
        """
        self._trainer = trainer
        self._way = way
        self._engines = engines
        self.router: Router | None = None  # through which the engines are used, once there is one
        self.revival: Revival | None = None  # of the engines, where they come back
        self._size_bytes: int | None = None  # of the last publication
        self._timeout_s = timeout_s
        self._circles = Circles(engines) if way.transport == "collective" else None

    async def publish(self, weights: Weights, *, version: int, switch: Switch) -> PublishReport:
        """Make `version` live in every replica that is in use.

        Raises the transport's error with the old version served, RoleError where a rank is lost.
        """
        assert not weights.tensors, "the ranks publish what they hold"
        if self.router is None:
            return await self._published(version, switch)
        async with self.router.publication():
            return await self._published(version, switch)

    async def _published(self, version: int, switch: Switch) -> PublishReport:
        replicas = self._living()
        newcomers = () if self.revival is None else self.revival.newcomers()
        if not replicas:
            raise TransferError(f"version {version} can't be published: no engine is left.")
        may_regroup = self._circles is not None  # once with the same replicas
        while True:
            is_staged = False
            try:
                async with self._along(tuple(sorted({*replicas, *newcomers}))) as way:
                    await self._stage(way, version)
                    is_staged = True
                    return await self._switch(switch, version)
            except (TransferError, DeadlineError) as error:
                left = await self._still_living()
                is_same = left == replicas and not newcomers
                if not left or (is_same and (is_staged or not may_regroup)):
                    raise
                may_regroup = may_regroup and not is_same
                log.warning(
                    "event=publication_begins_again version=%d engines=%s without=%s reason=%s",
                    *(version, left, newcomers, error),
                )
                replicas, newcomers = left, ()

    def _living(self) -> tuple[int, ...]:
        """The replicas that are in use now."""
        serving = None if self.router is None else self.router.replicas
        return tuple(
            number
            for number, engine in enumerate(self._engines)
            if not engine.is_lost and (serving is None or serving.get(engine.name) == "serving")
        )

    async def _still_living(self) -> tuple[int, ...]:
        """Those of them that answer now."""
        numbers = self._living()
        answers = await asyncio.gather(*map(self._answers, numbers))
        living = {number for number, answer in zip(numbers, answers, strict=True) if answer}
        return tuple(number for number in self._living() if number in living)

    async def _answers(self, number: int) -> bool:
        try:
            async with asyncio.timeout(_CHECK_S):
                await self._engines[number].check()
        except (ParityError, TimeoutError):
            return False
        return True

    @contextlib.asynccontextmanager
    async def _along(self, replicas: tuple[int, ...]) -> AsyncGenerator[Way]:
        """The way to these replicas."""
        way = replace(self._way, replicas=replicas)
        if self._circles is None:
            yield way
        else:
            async with self._circles.circle(way) as way:
                yield way

    async def _stage(self, way: Way, version: int) -> None:
        try:
            await self._trainer.calls.gather(
                {name: r.stage.remote(way, version) for name, r in self._trainer.ranks.items()},
                f"publish version {version}",
                deadline_s=self._timeout_s,
            )
        except BaseException as error:
            if not isinstance(error, RoleError):
                await self._abort(str(error) or type(error).__name__)
            raise

    async def _switch(self, switch: Switch, version: int) -> PublishReport:
        reports: list[PublishReport] = []

        async def commit() -> None:
            answers = await self._trainer.calls.gather(
                {name: r.commit.remote() for name, r in self._sender.items()},
                "commit a version",
                deadline_s=self._timeout_s,
            )
            reports.extend(report for report in answers.values() if report is not None)

        try:
            router = self.router
            if router is None:
                await switch(commit)
            else:
                await switch(lambda: router.switch(commit, version=version))
        except BaseException as error:
            await self._abort(str(error) or type(error).__name__)
            raise
        if not reports:  # live, but not in a replica that died meanwhile: no report came back
            assert self._size_bytes is not None, "the first publication has to be a whole one"
            return PublishReport(version, self._size_bytes)
        self._size_bytes = reports[0].size_bytes
        return reports[0]

    async def _abort(self, reason: str) -> None:
        with contextlib.suppress(ParityError):  # the first error is the one to report
            await self._trainer.calls.gather(
                {name: r.abort.remote(reason) for name, r in self._sender.items()},
                "abort a publication",
                deadline_s=min(_ABORT_S, self._timeout_s),
            )

    @property
    def _sender(self) -> dict[str, Actor]:
        name, rank = next(iter(self._trainer.ranks.items()))
        return {name: rank}
