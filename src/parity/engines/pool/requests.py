"""The requests of a router: chosen a replica for, tried, begun again, ended once.

A request is in `calls` from its beginning to its one end. It waits only for a replica to
answer (which ends when that leaves the pool) or for the pool to change while a switch or a
joining is under way (which both end).
"""

import asyncio
import logging
from functools import partial

from parity.engines.config import RouterConfig
from parity.engines.pool.balance import Balance, conversation_of
from parity.engines.pool.health import Health, other_version
from parity.engines.pool.pool import Pool
from parity.engines.pool.replica import Call, Replica
from parity.errors import EngineError, EngineLostError, RequestError
from parity.types import Completion

log = logging.getLogger(__name__)
_ABORTED = Completion((), (), (), "abort")


class Requests:
    """What is generated over a pool."""

    def __init__(self, pool: Pool, health: Health, config: RouterConfig) -> None:
        self.calls: dict[str, Call] = {}
        self.num_retries = 0
        self._num_joins = 0  # that the balance knows of
        self._widest = 0  # lead of a replica over the least busy one, in requests
        self._pool = pool
        self._health = health
        self._config = config
        self._balance = Balance(slack=config.sticky_slack)
        self._refusal: str | None = None

    @property
    def num_unrouted(self) -> int:
        """Requests that no replica has."""
        return sum(call.replica is None for call in self.calls.values())

    def take_spread(self) -> int:
        """The widest lead of a replica over the least busy one since the last call."""
        widest, self._widest = self._widest, 0
        return widest

    async def serve(self, call: Call) -> Completion:
        """The completion of a request, or its error."""
        if call.request_id in self.calls:
            raise EngineError(
                f"request id {call.request_id!r} is in use; give each request its own."
            )
        self.calls[call.request_id] = call
        try:
            return await self._served(call)
        finally:
            self.calls.pop(call.request_id, None)
            if not self.calls:
                self._pool.wake()

    async def abort(self, request_id: str) -> None:
        """End a request with the tokens that its replica has; else do nothing."""
        call = self.calls.get(request_id)
        if call is None:
            return
        call.is_aborted = True
        replica = call.replica
        if replica is None:
            self._pool.wake()
            return
        question = replica.engine.abort(call.engine_id)
        try:
            await replica.ask("abort", question, timeout_s=self._config.call_timeout_s)
        except Exception as error:  # noqa: BLE001 (the replica leaves, which ends the request too)
            self._pool.leave(replica, f"abort failed: {error}", error)

    def refuse(self, reason: str) -> None:
        """End every request, now and later, with EngineLostError."""
        self._refusal = reason
        for call in self.calls.values():
            if call.outcome is not None and not call.outcome.done():
                call.outcome.set_exception(EngineLostError(reason))
        self._pool.wake()

    def check_open(self) -> None:
        """Raise EngineLostError where the router was closed."""
        if self._refusal is not None:
            raise EngineLostError(self._refusal)

    async def ended(self) -> None:
        """Wait until there is no request."""
        while self.calls:
            await self._pool.changed()

    async def _served(self, call: Call) -> Completion:
        while True:
            replica = self._chosen(call) or await self._available(call)
            if replica is None:
                return _ABORTED
            try:
                completion = await self._tried(call, replica)
            except RequestError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever it is, the replica failed at it)
                self.check_open()
                call.cause, why = error, f"{type(error).__name__}: {error}"
                replica.num_failed += 1
                try:
                    await self._health.is_alive(replica, f"a request failed ({why})")
                finally:
                    replica.num_failed -= 1
            else:
                if completion is not None:
                    return completion
                why = replica.why or "it left the pool"
            call.tries.append((replica, why))
            self._check_tries(call)

    def _check_tries(self, call: Call) -> None:
        """Count a lost try; raises EngineError where it was the last."""
        if call.is_aborted or not (self._pool.serving or self._pool.joining):
            return  # the next look at the pool ends the request
        if len(call.tries) > self._config.max_retries:
            tries = "; ".join(f"{replica.name}: {why}" for replica, why in call.tries)
            raise EngineError(
                f"request {call.request_id!r} failed {len(call.tries)} times ({tries}); "
                f"placement.router.max_retries={self._config.max_retries} allows no further try."
            ) from call.cause
        self.num_retries += 1
        replica, why = call.tries[-1]
        log.debug("event=retry request=%s from=%s reason=%r", call.request_id, replica.name, why)

    def _chosen(self, call: Call) -> Replica | None:
        """Where the next try goes; None where that has to be waited for."""
        pool = self._pool
        while pool.serving and not (pool.is_switching or call.is_aborted or self._refusal):
            if self._num_joins != pool.num_joins:
                self._num_joins = pool.num_joins
                self._balance.forget()  # whoever joined shall have its share at once
            replicas = pool.serving
            if call.tries:
                last, _ = call.tries[-1]
                replicas = [one for one in replicas if one is not last] or replicas
            conversation = conversation_of(call.request_id, call.tokens)
            replica = self._balance.choose(replicas, conversation)
            version = replica.engine.version
            if version == pool.version:
                return replica
            pool.leave(replica, other_version(version, pool.version))
        return None

    async def _available(self, call: Call) -> Replica | None:
        """Wait for a replica; None where the request is aborted meanwhile.

        Raises EngineLostError where nobody is left and nobody is joining.
        """
        pool = self._pool
        while True:
            self.check_open()
            if call.is_aborted:
                return None
            replica = self._chosen(call)
            if replica is not None:
                return replica
            if not (pool.serving or pool.joining or pool.is_switching):
                raise pool.nobody() from call.cause or pool.cause
            await pool.changed()

    async def _tried(self, call: Call, replica: Replica) -> Completion | None:
        """One try; None where the replica left the pool before it ended."""
        loop = asyncio.get_running_loop()
        version = self._pool.version
        call.outcome = outcome = loop.create_future()
        call.replica = replica
        replica.calls.add(call)
        fewest = min(len(one.calls) for one in self._pool.serving)
        self._widest = max(self._widest, len(replica.calls) - fewest)
        task = loop.create_task(
            replica.engine.generate(call.tokens, call.sampling, request_id=call.engine_id)
        )
        task.add_done_callback(partial(_hand_over, outcome))
        try:
            completion = await outcome
        finally:
            replica.calls.discard(call)
            call.replica = call.outcome = None
            if not task.done():
                replica.abandon(task)
        if completion is None:
            return None
        stamps = completion.versions
        if stamps and not version <= stamps[0] <= stamps[-1] <= self._pool.newest:
            reason = f"it stamped tokens {stamps[0]} to {stamps[-1]}, and version {version} was due"
            self._pool.leave(replica, reason)
            return None
        replica.tokens_served += len(call.tokens) + len(completion.tokens)
        return completion


def _hand_over(
    outcome: "asyncio.Future[Completion | None]", task: "asyncio.Task[Completion]"
) -> None:
    """What became of a try, unless its request is gone or the replica left before."""
    error = EngineError("the replica broke it off") if task.cancelled() else task.exception()
    if outcome.done():
        return
    if error is None:
        outcome.set_result(task.result())
    else:
        outcome.set_exception(error)
