"""Who still answers: the health checks of a pool, and who comes back.

who        does                                        waits for
watch      asks every replica, each round              the interval; each answer with its limit
is_alive   asks one replica whose request just failed  its answer with its limit

A replica leaves the pool when it answers late, raises, serves another version than the pool,
or holds requests and computes no token for `stall_timeout_s`. One that left and answers
again joins again (`joining.py`), after a pause that doubles with every departure.
"""

import asyncio
import logging

from parity.engines.config import RouterConfig
from parity.engines.pool.joining import Joining
from parity.engines.pool.pool import Pool
from parity.engines.pool.replica import Replica
from parity.errors import EngineError

log = logging.getLogger(__name__)
_MOST_DOUBLINGS = 6


class Health:
    """Checks the replicas of a pool in its event loop."""

    def __init__(self, pool: Pool, joining: Joining, config: RouterConfig) -> None:
        self._pool = pool
        self._joining = joining
        self._config = config
        self._progress: dict[Replica, tuple[tuple[int, int], float]] = {}  # tokens, since when
        self._next_try_s: dict[Replica, float] = {}  # of those who are absent

    async def watch(self) -> None:
        """Check everyone for ever."""
        while True:
            await asyncio.sleep(self._config.check_interval_s)
            absent = [r for r in self._pool.absent.values() if self._is_due(r)]
            await asyncio.gather(
                *(self._look(replica) for replica in list(self._pool.serving)),
                *(self._greet(replica) for replica in absent),
            )
            known = set(self._pool.replicas())
            self._progress = {r: p for r, p in self._progress.items() if r in known}
            self._next_try_s = {r: t for r, t in self._next_try_s.items() if r in known}

    async def is_alive(self, replica: Replica, reason: str) -> bool:
        """Whether a replica still serves, asked now; otherwise it has left the pool.

        Args:
            reason: why it is asked.
        """
        pool, epoch = self._pool, self._pool.epoch
        if replica.state != "serving":
            return False
        try:
            version = await self._version(replica)
        except Exception as error:  # noqa: BLE001 (whatever a proxy raises, it doesn't answer)
            pool.leave(replica, f"{reason}: {_told(error)}", error)
            return False
        if version != pool.version and epoch == pool.epoch and not pool.is_switching:
            pool.leave(replica, other_version(version, pool.version))
        return replica.state == "serving"

    async def versions(self, replicas: list[Replica]) -> list[int | str]:
        """The version that each one serves, asked now; why not where one doesn't answer."""
        found = await asyncio.gather(
            *(self._version(replica) for replica in replicas), return_exceptions=True
        )
        return [one if isinstance(one, int) else _told(one) for one in found]

    async def _version(self, replica: Replica) -> int:
        return await replica.ask(
            "its health check", replica.engine.check(), timeout_s=self._config.check_timeout_s
        )

    async def _look(self, replica: Replica) -> None:
        """The periodic check of a replica that serves."""
        if not await self.is_alive(replica, "its health check failed"):
            return
        now = asyncio.get_running_loop().time()
        stats = replica.stats()
        tokens = (stats.prefilled_tokens, stats.sampled_tokens)
        before, since = self._progress.get(replica, (None, now))
        is_at_rest = not replica.calls or self._pool.is_paused or stats.is_asleep
        if is_at_rest or tokens != before:
            self._progress[replica] = (tokens, now)
        elif now - since >= self._config.stall_timeout_s:
            self._pool.leave(
                replica,
                f"it holds {replica.in_flight} requests and has computed no token for "
                f"{now - since:.0f} s (placement.router.stall_timeout_s)",
            )

    def _is_due(self, replica: Replica) -> bool:
        now = asyncio.get_running_loop().time()
        due_s = self._next_try_s.setdefault(replica, now + self._pause_s(replica))
        return now >= due_s

    def _pause_s(self, replica: Replica) -> float:
        doublings = min(max(0, replica.num_departures - 1), _MOST_DOUBLINGS)
        return self._config.check_interval_s * 2**doublings

    async def _greet(self, replica: Replica) -> None:
        """Let a replica that left join again, where it answers and can be brought along."""
        del self._next_try_s[replica]
        try:
            version = await self._version(replica)
        except Exception as error:  # noqa: BLE001 (it is still away)
            log.debug("event=replica_away replica=%s reason=%s", replica.name, error)
            return
        if version == self._pool.version or self._joining.can_bring:
            self._joining.begin(replica, "it answers again")


def other_version(found: int, wanted: int) -> str:
    """Why a replica of another version may not serve."""
    return f"it serves version {found} while the pool is at version {wanted}"


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
