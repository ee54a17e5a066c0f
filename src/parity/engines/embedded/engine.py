"""`engine.name=embedded`: Parity's own engine, in the process that asks.

One asyncio task drives the scheduler on the caller's event loop; the tensors are computed in
a private thread with its own number of CPU threads, weights are copied in another one.

who       does                                   waits for
generate  puts a request into the inbox          its future
driver    inbox -> scheduler, one step, futures  work; the step; who holds `stepping`
pause     stops the driver between two steps     `stepping`
commit    swaps the weights between two steps    `stepping`

Requests that are submitted by callbacks that are ready when a batch begins are all in it, so
a program that doesn't depend on time gives the same batches, and the same bits, every run.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from parity.engines.config import EmbeddedEngineConfig
from parity.engines.embedded.loading import Publication
from parity.engines.embedded.request import (
    Finished,
    Request,
    check_prompt,
    check_sampling,
)
from parity.engines.embedded.sampler import derive_seed
from parity.engines.embedded.scheduler import Scheduler
from parity.engines.embedded.selection import build_decoder
from parity.engines.embedded.stops import DecodeText
from parity.engines.engine import Engine, EngineCapabilities, EngineStats
from parity.errors import EngineError, TransferError
from parity.types import Completion, Sampling
from parity.weights.manifest import Manifest

logger = logging.getLogger(__name__)

_QUIET_ROUNDS = 5  # rounds of the event loop without a new request before a batch begins


@dataclass(slots=True)
class _Attached:
    """What belongs to the event loop that the engine is driven on."""

    loop: asyncio.AbstractEventLoop
    driver: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    stepping: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class _Pending:
    request: Request
    future: asyncio.Future[Completion]


class EmbeddedEngine(Engine):
    """Continuous batching over a copy of a Hugging Face model's weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        config: EmbeddedEngineConfig,
        max_length: int,
        eos_token_ids: Collection[int],
        decode: DecodeText | None,
        device: torch.device,
        threads: int | None,
        seed: int = 0,
        version: int = 0,
    ) -> None:
        """Copy the weights and check the forward pass against `model`.

        Args:
            model: whose weights are served first; nothing is shared with it.
            config: `config.max_length` isn't read; `max_length` is what it resolved to.
            max_length: prompt plus answer tokens of one request.
            eos_token_ids: end every answer.
            decode: ids to text, for stop strings; None: requests with stop strings are refused.
            device: where the engine computes.
            threads: CPU threads of the decoding thread; None: torch's default.
            seed: from which requests without a seed get theirs.
            version: of the weights in `model`.

        Raises UnsupportedError where the engine can't serve the model exactly.
        """
        torch.get_num_threads()  # settles the calling thread's number before others set theirs
        self._max_length = max_length
        self._max_concurrent = config.max_concurrent
        self._can_decode_text = decode is not None
        self._seed = seed
        self._decoder = build_decoder(
            model,
            forward=config.forward,
            dtype=config.dtype,
            device=device,
            max_length=max_length,
        )
        self._scheduler = Scheduler(
            self._decoder,
            max_concurrent=config.max_concurrent,
            prefill_tokens=config.prefill_tokens,
            eos_token_ids=frozenset(eos_token_ids),
            decode_text=decode,
            version=version,
        )
        self._decoding = _thread("parity-decode", threads)
        self._copying = _thread("parity-load", 1)
        self._attached: _Attached | None = None
        self._inbox: list[Request] = []
        self._aborts: set[str] = set()
        self._pending: dict[str, _Pending] = {}
        self._num_submitted = 0
        self._is_paused = False
        self._refusal: str | None = None  # why nothing is served any more
        self._cause: BaseException | None = None
        self._publication: Publication | None = None

    @property
    def capabilities(self) -> EngineCapabilities:
        """Weights can change between two tokens; seeded requests are reproducible."""
        return EngineCapabilities(updates_in_flight=True, is_seeded=True)

    @property
    def version(self) -> int:
        """The weight version that is served now."""
        return self._scheduler.version

    @property
    def max_length(self) -> int:
        """Prompt plus answer tokens that one request may have."""
        return self._max_length

    @property
    def forward(self) -> str:
        """Which forward pass serves the model: lean or generic."""
        return self._decoder.name

    def stats(self) -> EngineStats:
        """Counters since the start."""
        running = self._scheduler.num_running
        return EngineStats(
            sampled_tokens=self._scheduler.sampled_tokens,
            prefilled_tokens=self._scheduler.prefilled_tokens,
            busy_s=self._scheduler.busy_s,
            running=running,
            waiting=max(0, len(self._pending) - running),
        )

    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        """Sample one completion of `tokens`; cancelling the call ends the request.

        Raises EngineError where the request can't be served.
        """
        attached = self._attach()
        check_sampling(sampling, can_decode_text=self._can_decode_text)
        check_prompt(
            tokens,
            max_new_tokens=sampling.max_new_tokens,
            vocabulary_size=self._decoder.vocabulary_size,
            max_length=self._max_length,
        )
        number = self._num_submitted
        name = f"request-{number}" if request_id is None else request_id
        if name in self._pending:
            raise EngineError(f"request id {name!r} is in use; give each request its own.")
        seed = derive_seed(self._seed, number) if sampling.seed is None else sampling.seed
        pending = _Pending(Request(name, tokens, sampling, seed), attached.loop.create_future())
        self._num_submitted += 1
        self._pending[name] = pending
        self._inbox.append(pending.request)
        self._wake(attached)
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._request_abort(attached, name)
            raise

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort` and the tokens it has; else do nothing."""
        attached = self._attach()
        pending = self._pending.get(request_id)
        if pending is not None:
            self._request_abort(attached, request_id)
            await asyncio.wait([pending.future])

    async def pause(self) -> None:
        """Stop between two tokens; requests keep their state. Returns when stopped."""
        attached = self._attach()
        self._is_paused = True
        self._scheduler.interrupt()
        async with attached.stepping:
            pass

    async def resume(self) -> None:
        """Go on decoding after `pause`."""
        attached = self._attach()
        self._is_paused = False
        self._wake(attached)

    async def drain(self) -> None:
        """Wait until no request is running or waiting; for ever if paused with requests."""
        attached = self._attach()
        while self._pending:
            attached.idle.clear()
            await attached.idle.wait()

    async def begin_load(self, manifest: Manifest) -> None:
        """Begin a publication.

        Raises TransferError where one is under way, the version isn't newer, or the tensors
        aren't those of the model.
        """
        attached = self._attach()
        if self._publication is not None:
            raise TransferError(
                f"version {manifest.version} can't begin: version "
                f"{self._publication.manifest.version} is under way; commit or abort it first."
            )
        if manifest.version <= self.version:
            raise TransferError(
                f"version {manifest.version} isn't newer than version {self.version}, which is "
                f"served; versions must increase."
            )
        self._publication = await attached.loop.run_in_executor(
            self._copying, self._open_publication, manifest
        )

    async def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy tensors aside; `tensors` is iterated in another thread while decoding goes on.

        Raises TransferError for what the manifest didn't announce, or before `begin_load`.
        """
        publication = self._begun("load")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._copying, publication.take, tensors)

    async def commit_load(self, version: int) -> None:
        """Serve the new weights from the next token on.

        Raises TransferError where tensors are missing or `version` is another one; the old
        weights stay, and the publication is still to be aborted.
        """
        publication = self._begun("commit_load")
        attached = self._attach()
        if version != publication.manifest.version:
            raise TransferError(
                f"version {version} can't be committed: version "
                f"{publication.manifest.version} is under way."
            )
        publication.check_complete()
        self._publication = None
        self._scheduler.interrupt()
        async with attached.stepping:
            await attached.loop.run_in_executor(self._decoding, self._scheduler.serve, version)
        self._wake(attached)

    async def abort_load(self, reason: str) -> None:
        """Forget what `load` took, if anything; the old version stays."""
        if self._publication is not None:
            logger.info(
                "engine load=aborted version=%d reason=%r",
                self._publication.manifest.version,
                reason,
            )
            self._publication = None

    async def close(self) -> None:
        """End every request with EngineError, end the threads and free the memory."""
        if self._refusal is None:
            self._refusal = "the engine was closed; build a new one."
        self._scheduler.interrupt()
        attached = self._attached
        if attached is not None and attached.loop is asyncio.get_running_loop():
            async with attached.stepping:
                if attached.driver is not None:
                    attached.driver.cancel()
        self._refuse_pending()
        for executor in (self._decoding, self._copying):
            await asyncio.to_thread(executor.shutdown)
        self._publication = None
        self._scheduler.free()
        self._decoder.free()

    def _open_publication(self, manifest: Manifest) -> Publication:
        return Publication(
            manifest, expected=self._decoder.expected, destinations=self._decoder.staged()
        )

    def _begun(self, call: str) -> Publication:
        self._check_served()
        if self._publication is None:
            raise TransferError(f"{call} came before begin_load; begin a publication first.")
        return self._publication

    def _check_served(self) -> None:
        if self._refusal is not None:
            raise EngineError(self._refusal) from self._cause

    def _attach(self) -> _Attached:
        """What belongs to the running event loop; begins driving where nobody does.

        Raises EngineError where the engine was closed, failed, or is driven on another loop.
        """
        self._check_served()
        loop = asyncio.get_running_loop()
        attached = self._attached
        if attached is None or attached.loop is not loop:
            if attached is not None and not attached.loop.is_closed():
                raise EngineError(
                    "the engine is driven on another event loop that isn't closed; "
                    "use one event loop for all calls."
                )
            # A closed loop has left its requests behind; nobody waits for them any more.
            self._decoding.submit(self._scheduler.clear)
            self._pending.clear()
            self._inbox.clear()
            self._aborts.clear()
            attached = self._attached = _Attached(loop)
        if attached.driver is None or attached.driver.done():
            attached.driver = loop.create_task(self._drive(attached), name="parity-engine")
            attached.driver.add_done_callback(self._end_driving)
        return attached

    def _wake(self, attached: _Attached) -> None:
        self._scheduler.interrupt()
        attached.wake.set()

    def _request_abort(self, attached: _Attached, request_id: str) -> None:
        if request_id in self._pending:
            self._aborts.add(request_id)
            self._wake(attached)

    def _has_work(self) -> bool:
        if self._aborts:
            return True
        return not self._is_paused and (bool(self._inbox) or self._scheduler.has_work)

    async def _drive(self, attached: _Attached) -> None:
        """Step while there is work; ends only by cancellation or failure."""
        is_settled = False
        while True:
            while not self._has_work():
                attached.wake.clear()
                is_settled = False
                await attached.wake.wait()
            if self._inbox or not is_settled:
                await self._settle()
            async with attached.stepping:
                finished = await self._step(attached.loop)
            self._resolve(attached, finished)
            is_settled = not finished

    async def _settle(self) -> None:
        """Let callbacks that are ready submit their requests, so that no batch depends on time."""
        quiet_rounds = 0
        while quiet_rounds < _QUIET_ROUNDS and len(self._inbox) < self._max_concurrent:
            before = self._num_submitted
            await asyncio.sleep(0)
            quiet_rounds = quiet_rounds + 1 if self._num_submitted == before else 0

    async def _step(self, loop: asyncio.AbstractEventLoop) -> list[Finished]:
        """One step of the scheduler in the decoding thread; only aborts while paused."""
        aborted, self._aborts = frozenset(self._aborts), set[str]()
        if self._is_paused:
            dropped = [request for request in self._inbox if request.request_id in aborted]
            self._inbox = [r for r in self._inbox if r.request_id not in aborted]
            new, decode = dropped, False
        else:
            new, self._inbox = self._inbox, []
            decode = True
        return await loop.run_in_executor(self._decoding, self._compute, new, aborted, decode)

    def _compute(
        self, new: Sequence[Request], aborted: frozenset[str], decode: bool
    ) -> list[Finished]:
        with torch.inference_mode():
            return self._scheduler.step(new, aborted, decode=decode)

    def _resolve(self, attached: _Attached, finished: Sequence[Finished]) -> None:
        """Hand results to who waits for them, in order."""
        for item in finished:
            future = self._pending.pop(item.request.request_id).future
            if not future.done():
                future.set_result(item.completion)
        if not self._pending:
            attached.idle.set()

    def _end_driving(self, driver: asyncio.Task[None]) -> None:
        """A failed step ends the engine: its requests can't be told from healthy ones."""
        if driver.cancelled():
            return
        error = driver.exception()
        if error is None:
            return
        logger.error("engine failed reason=%r", str(error))
        self._refusal = f"the engine failed ({type(error).__name__}: {error}); build a new one."
        self._cause = error
        self._refuse_pending()

    def _refuse_pending(self) -> None:
        """End every request with the reason why nothing is served any more."""
        for pending in self._pending.values():
            if not pending.future.done():
                refusal = EngineError(self._refusal)
                refusal.__cause__ = self._cause
                pending.future.set_exception(refusal)
        self._pending.clear()
        self._inbox.clear()
        if self._attached is not None:
            self._attached.idle.set()


def _thread(name: str, threads: int | None) -> ThreadPoolExecutor:
    """One thread that computes with `threads` CPU threads (None: torch's default)."""

    def set_threads() -> None:
        if threads is not None:
            torch.set_num_threads(threads)

    return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=set_threads)
