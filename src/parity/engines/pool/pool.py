"""Who serves and at which version; who left, when and why.

Every change of the pool goes through `admit`, `leave` or `forget` and is an event with its
reason. Invariant: a replica in `serving` serves the pool's version, as far as anybody knows;
who learns otherwise calls `leave`. `epoch` grows with everything that a replica which is about
to join has to match, so that joining needs no lock.
"""

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from parity.engines.engine import Engine, EngineCapabilities, EngineStats
from parity.engines.pool.replica import Replica
from parity.errors import EngineError, EngineLostError

log = logging.getLogger(__name__)
Change = Literal["joined", "left", "refused"]
_MAX_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class PoolEvent:
    """One change of the pool."""

    at_s: float  # time.monotonic()
    replica: str
    change: Change
    reason: str
    version: int  # of the pool
    alive: int  # replicas that serve after it
    lost_requests: int = 0  # that were on the replica; what was sampled for them is lost


class Pool:
    """The replicas of a router."""

    def __init__(
        self, engines: Mapping[str, Engine], *, on_change: Callable[[PoolEvent], None] | None
    ) -> None:
        """`engines` by name, at least one, all at one version."""
        if not engines:
            raise EngineError("a router needs at least one engine and got none.")
        versions = {name: engine.version for name, engine in engines.items()}
        if len(set(versions.values())) > 1:
            raise EngineError(
                f"the engines of a router serve different versions ({versions}); publish one "
                "version to all of them first."
            )
        self.version = next(iter(versions.values()))
        self.capabilities = common([engine.capabilities for engine in engines.values()])
        self.max_length = min(engine.max_length for engine in engines.values())
        self.serving: list[Replica] = []
        self.joining: dict[str, Replica] = {}
        self.absent: dict[str, Replica] = {}
        self.epoch = 0
        self.is_paused = False
        self.is_asleep = False
        self.is_loading = False  # between begin_load and commit_load or abort_load
        self.is_switching = False  # replicas exchange their weights now, one after another
        self.coming = self.version  # what they switch to
        self.cause: BaseException | None = None  # of the last departure
        self.num_departures = 0
        self.num_joins = 0
        self.events: deque[PoolEvent] = deque(maxlen=_MAX_EVENTS)
        self._changed = asyncio.Event()
        self._on_change = on_change
        self._before = EngineStats(decoded_rows=0)  # of replicas that were forgotten
        for name, engine in engines.items():
            replica = Replica(name, engine)
            replica.enter()
            self.serving.append(replica)

    def replicas(self) -> list[Replica]:
        """Everyone who serves, joins or is absent."""
        return [*self.serving, *self.joining.values(), *self.absent.values()]

    def admit(self, replica: Replica, reason: str) -> None:
        """The replica serves from now on."""
        self.joining.pop(replica.name, None)
        self.absent.pop(replica.name, None)
        replica.enter()
        self.serving.append(replica)
        self.num_joins += 1
        self._tell(replica, "joined", reason)

    def leave(self, replica: Replica, reason: str, cause: BaseException | None = None) -> None:
        """The replica serves no more; its requests are begun again elsewhere."""
        if replica not in self.serving:
            return
        self.serving.remove(replica)
        self.absent[replica.name] = replica
        self.num_departures += 1
        self.cause = cause
        num_lost = replica.leave(reason)
        self._tell(replica, "left", reason, num_lost)

    def refuse(self, replica: Replica, reason: str) -> None:
        """The replica couldn't join; it stays absent."""
        if self.joining.pop(replica.name, None) is not replica:
            return  # it was forgotten meanwhile
        replica.state, replica.why = "left", reason
        self.absent[replica.name] = replica
        self._tell(replica, "refused", reason)

    def forget(self, replica: Replica) -> None:
        """The replica isn't one of the pool any more; its counters stay in the sums."""
        for group in (self.absent, self.joining):
            if group.get(replica.name) is replica:
                del group[replica.name]
        self.wake()
        self._before = total([self._before, replica.stats()])

    @property
    def newest(self) -> int:
        """The highest version that a token may have now."""
        return max(self.version, self.coming)

    @property
    def is_settled(self) -> bool:
        """Whether a replica may join now."""
        return not (self.is_loading or self.is_switching or self.is_asleep)

    def missing(self, capabilities: EngineCapabilities) -> list[str]:
        """What the pool promises and an engine with these can't do."""
        return [
            each.name
            for each in dataclasses.fields(EngineCapabilities)
            if getattr(self.capabilities, each.name) and not getattr(capabilities, each.name)
        ]

    def attach(self) -> None:
        """Begin anew in another event loop."""
        self._changed = asyncio.Event()
        self.joining.clear()
        for replica in self.replicas():
            replica.forget()

    def touch(self) -> None:
        """Something changed that a replica has to match before it may join."""
        self.epoch += 1
        self.wake()

    def wake(self) -> None:
        """Let everyone look again who waits in `changed`."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next change; whoever waits has another end to its wait."""
        await self._changed.wait()

    def nobody(self) -> EngineLostError:
        """The error of a request that no replica is left for."""
        fates = "; ".join(f"{r.name}: {r.why}" for r in self.replicas()) or "none was added"
        return EngineLostError(
            f"no engine replica is left to serve version {self.version} ({fates}); "
            "see the logs of the engines, then start them again."
        )

    def stats(self) -> EngineStats:
        """Sums over all replicas that there are or were."""
        sums = total([self._before, *(replica.stats() for replica in self.replicas())])
        asleep = [replica.stats().is_asleep for replica in self.serving]
        return dataclasses.replace(sums, is_asleep=bool(asleep) and all(asleep))

    def _tell(self, replica: Replica, change: Change, reason: str, num_lost: int = 0) -> None:
        alive = len(self.serving)
        event = PoolEvent(
            time.monotonic(), replica.name, change, reason, self.version, alive, num_lost
        )
        self.events.append(event)
        log.log(
            logging.INFO if change == "joined" else logging.WARNING,
            "event=replica_%s replica=%s version=%d alive=%d lost_requests=%d reason=%r%s",
            change,
            replica.name,
            self.version,
            alive,
            num_lost,
            reason,
            "; what was sampled for these requests is lost" if num_lost else "",
        )
        self.wake()
        if self._on_change is not None:
            self._on_change(event)


def common(capabilities: list[EngineCapabilities]) -> EngineCapabilities:
    """What all of them can do."""
    names = [each.name for each in dataclasses.fields(EngineCapabilities)]
    return EngineCapabilities(
        **{name: all(getattr(one, name) for one in capabilities) for name in names}
    )


def total(stats: list[EngineStats]) -> EngineStats:
    """The sums; unknown where one engine doesn't count."""
    rows = [one.decoded_rows for one in stats]
    known = [row for row in rows if row is not None]
    return EngineStats(
        sampled_tokens=sum(one.sampled_tokens for one in stats),
        prefilled_tokens=sum(one.prefilled_tokens for one in stats),
        decoded_rows=sum(known) if len(known) == len(rows) else None,
        busy_s=sum(one.busy_s for one in stats),
        running=sum(one.running for one in stats),
        waiting=sum(one.waiting for one in stats),
    )
