"""Tries again what broke: bounded, with back-off, counted.

Used by `group.py` and by evaluation, for requests to the engine and for grading alike. A result
that isn't there is a GraderFailure with its reason, never a number. What no other try can mend
isn't tried again; an engine that was lost isn't waited for: its error goes on to the caller.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from parity.errors import EngineError, EngineLostError, RequestError
from parity.types import Completion, GraderFailure, RewardResult

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0  # before another try; doubled each time
TIMED_OUT = "generation timed out (rollouts.episode_timeout_s)"
ENDED_EARLY = "the engine ended the request before its end"

log = logging.getLogger(__name__)


def pause_s(tried: int) -> float:
    """How long to wait before another try, after `tried` of them."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(tried - 1, 20))


def pauses_s(most: int) -> float:
    """How long all pauses of one episode may take together."""
    return sum(pause_s(tried) for tried in range(1, most + 1))


class Retries:
    """How often a try may be repeated, and how often it was."""

    def __init__(
        self, most: int, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """`most` tries after the first; `sleep` waits for so many seconds."""
        self.most = most
        self.count = 0  # tries after the first, of one episode each
        self._sleep = sleep

    async def pause(self, tried: int, what: str, failures: Sequence[GraderFailure]) -> None:
        """Wait before what failed is tried again; `tried` tries were made."""
        self.count += len(failures)
        log.info(
            "event=retry what=%s episodes=%d tries_left=%d reason=%s",
            what,
            len(failures),
            self.most - tried + 1,
            failures[-1].reason,
        )
        await self._sleep(pause_s(tried))


def is_worth_retrying(result: object) -> bool:
    """Whether another try may help."""
    return isinstance(result, GraderFailure) and result.retryable


def failures_of(results: Sequence[RewardResult | Completion]) -> list[GraderFailure]:
    """The failures among results."""
    return [result for result in results if isinstance(result, GraderFailure)]


async def outcomes(
    requests: Mapping[int, Coroutine[None, None, Completion]], *, timeout_s: float | None
) -> dict[int, Completion | GraderFailure]:
    """What each request came to; those that are late are ended. They begin together.

    Raises EngineLostError as soon as one does; no request outlives the call.
    """
    tries = {n: asyncio.create_task(_outcome(request)) for n, request in requests.items()}
    try:
        await asyncio.wait(tries.values(), timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        late = [one for one in tries.values() if not one.done()]
        for one in late:
            one.cancel()
        if late:
            await asyncio.gather(*late, return_exceptions=True)
    errors = [one.exception() for one in tries.values() if not one.cancelled()]
    for error in errors:
        if error is not None:
            raise error
    return {
        n: GraderFailure(TIMED_OUT) if one.cancelled() else one.result() for n, one in tries.items()
    }


async def _outcome(request: Coroutine[None, None, Completion]) -> Completion | GraderFailure:
    try:
        completion = await request
    except EngineLostError:
        raise
    except EngineError as error:
        return GraderFailure(f"the engine: {error}", retryable=not isinstance(error, RequestError))
    except Exception as error:
        log.warning("event=request_broke reason=%s: %s", type(error).__name__, error)
        log.info("event=traceback", exc_info=error)
        return GraderFailure(f"the engine broke: {type(error).__name__}: {error}", retryable=False)
    is_ended_early = completion.finish_reason == "abort"
    return GraderFailure(ENDED_EARLY) if is_ended_early else completion
