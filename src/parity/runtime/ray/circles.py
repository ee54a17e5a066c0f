"""Which process group the next publication uses, where `weights.transport=collective`.

A group serves one set of processes: it is made anew when a replica left, came or came back, and
after every publication that failed. Driven from the driver, because only the driver knows who
lives: it lets the replicas join while rank 0 opens its end (`publication.py`), and tells both of a
member that dies meanwhile, so that nobody waits for it until a deadline. Used by `transfer.py`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from parity.errors import ParityError
from parity.runtime.ray.engine import RemoteEngine
from parity.runtime.ray.publication import Way
from parity.weights.session.meeting import tell_lost

log = logging.getLogger(__name__)
_LOOK_S = 0.2
_TELL_S = 10.0


class Circles:
    """The groups of one run, one at a time."""

    def __init__(self, engines: Sequence[RemoteEngine]) -> None:
        """`engines` are by number; one that was started again takes its place there."""
        self._engines = engines
        self._number = 0
        self._members: tuple[RemoteEngine, ...] = ()  # of the group that works

    @contextlib.asynccontextmanager
    async def circle(self, way: Way) -> AsyncGenerator[Way]:
        """The way of one publication, from its first message to its last; in use meanwhile."""
        members = tuple(self._engines[number] for number in way.replicas)
        is_new = members != self._members
        if is_new:
            self._number += 1
            log.info("event=circle_begins number=%d engines=%s", self._number, way.replicas)
        way = replace(way, circle=self._number)
        self._members = ()
        tasks = [asyncio.create_task(_watch(way, members))]
        tasks += [asyncio.create_task(_join(engine, way)) for engine in members if is_new]
        try:
            yield way
            self._members = members
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _join(engine: RemoteEngine, way: Way) -> None:
    """Why a replica didn't join is told by rank 0, which waits for it."""
    try:
        await engine.join(way)
    except ParityError as error:
        log.warning("event=circle_not_joined engine=%s reason=%r", engine.name, str(error))


async def _watch(way: Way, members: Sequence[RemoteEngine]) -> None:
    """Tell the others of every member that dies."""
    told: set[str] = set()
    while True:
        for engine in members:
            if engine.is_lost and engine.name not in told:
                told.add(engine.name)
                with contextlib.suppress(ParityError):  # they learn of it at their deadline
                    await asyncio.to_thread(
                        tell_lost, way.path, way.members(), engine.name, timeout_s=_TELL_S
                    )
        await asyncio.sleep(_LOOK_S)
