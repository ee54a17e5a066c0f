"""`engine.name=embedded`: Parity's own engine, in the process that asks.

It holds its own copy of the weights, decodes any number of requests side by side
(`scheduler.py`, driven by `driver.py`), and takes new weights into a second copy that is
exchanged with the first between two tokens. Unfinished requests go on: their cached keys and
values stay, and each token carries the version it was sampled under.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from parity.engines.config import EmbeddedEngineConfig
from parity.engines.embedded.decoders.selection import build_decoder
from parity.engines.embedded.driver import Driver, one_thread
from parity.engines.embedded.loading import Publication
from parity.engines.embedded.request import Request, check_prompt, check_sampling
from parity.engines.embedded.sampler import derive_seed
from parity.engines.embedded.scheduler import Scheduler
from parity.engines.embedded.sleeper import Sleeper
from parity.engines.embedded.stops import DecodeText
from parity.engines.engine import Engine, EngineCapabilities, EngineStats, SleepLevel
from parity.errors import EngineError, TransferError
from parity.types import Completion, Sampling
from parity.weights.manifest import Manifest

logger = logging.getLogger(__name__)


class EmbeddedEngine(Engine):
    """Continuous batching over a copy of a Hugging Face model's weights."""

    def __init__(  # noqa: PLR0913 - the config, and what the run passes beside it
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
        rest_dir: Path | None = None,
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
            rest_dir: where weights of a CPU rest in a sleep of level 2; None: the system's folder
                for files without a name.

        Raises UnsupportedError where the engine can't serve the model exactly.
        """
        torch.get_num_threads()  # settles the calling thread's number before others set theirs
        self._max_length = max_length
        self._can_decode_text = decode is not None
        self._seed = seed
        self._num_requests = 0
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
        self._sleeper = Sleeper(self._scheduler, self._decoder, rest_dir=rest_dir)
        self._driver = Driver(self._scheduler, threads=threads)
        self._copying = one_thread("parity-load", 1)
        self._publication: Publication | None = None

    @property
    def capabilities(self) -> EngineCapabilities:
        """Weights can change between two tokens; seeded requests are reproducible; it sleeps."""
        return EngineCapabilities(updates_in_flight=True, is_seeded=True, can_sleep=True)

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
            decoded_rows=self._scheduler.decoded_rows,
            busy_s=self._scheduler.busy_s,
            running=running,
            waiting=max(0, self._driver.num_pending - running),
            is_asleep=self._scheduler.is_asleep,
        )

    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        """Sample one completion of `tokens`; cancelling the call ends the request.

        Raises EngineError where the request can't be served.
        """
        self._driver.check_served()
        check_sampling(sampling, can_decode_text=self._can_decode_text)
        check_prompt(
            tokens,
            max_new_tokens=sampling.max_new_tokens,
            vocabulary_size=self._decoder.vocabulary_size,
            max_length=self._max_length,
        )
        number = self._num_requests
        self._num_requests += 1
        name = f"request-{number}" if request_id is None else request_id
        seed = derive_seed(self._seed, number) if sampling.seed is None else sampling.seed
        return await self._driver.submit(Request(name, tokens, sampling, seed))

    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort` and the tokens it has; else do nothing."""
        await self._driver.abort(request_id)

    async def pause(self) -> None:
        """Stop between two tokens; requests keep their state. Returns when stopped."""
        await self._driver.pause()

    async def resume(self) -> None:
        """Go on decoding after `pause`."""
        await self._driver.resume()

    async def sleep(self, level: SleepLevel = 1) -> None:
        """Give up keys and values, at level 2 the weights too, until `wake`.

        Raises EngineError, and goes on as it was, where that isn't possible now.
        """
        self._driver.check_served()
        if self._publication is not None:
            raise EngineError(
                f"the engine can't sleep while version {self._publication.manifest.version} is"
                " being published; commit or abort it first."
            )
        await self._driver.exclusive(partial(self._sleeper.sleep, level))

    async def wake(self) -> None:
        """Be as before `sleep`, with the newest version committed since.

        Raises EngineError, and sleeps on, where there is too little memory.
        """
        await self._driver.wake(self._sleeper.wake)

    async def drain(self) -> None:
        """Wait until no request is running or waiting."""
        await self._driver.drain()

    async def begin_load(self, manifest: Manifest) -> None:
        """Begin a publication.

        Raises TransferError where one is under way, the version isn't newer, or the tensors
        aren't those of the model.
        """
        self._driver.check_served()
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
        publication = self._publication = Publication(
            manifest, expected=self._decoder.expected, destinations=self._decoder.staged()
        )
        if publication.unsent:  # the memory aside holds zeros or an older version
            loop = asyncio.get_running_loop()
            served = self._sleeper.served(publication.unsent)
            await loop.run_in_executor(self._copying, publication.keep, served)

    def staged_weights(self) -> Mapping[str, torch.Tensor]:
        """What the next `commit_load` would serve, by Hugging Face name; see `StagedWeights`.

        Raises TransferError while no publication is under way.
        """
        self._begun("staged_weights")
        return self._decoder.staged()

    async def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy tensors aside; `tensors` is iterated in another thread while decoding goes on.

        Raises TransferError for what the manifest didn't announce, or before `begin_load`.
        """
        publication = self._begun("load")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._copying, publication.take, tensors)

    async def commit_load(self, version: int) -> None:
        """Serve the new weights from the next token on.

        Raises TransferError where tensors are missing or `version` is another one; then the
        old weights stay and the publication can be completed or aborted.
        """
        publication = self._begun("commit_load")
        if version != publication.manifest.version:
            raise TransferError(
                f"version {version} can't be committed: version "
                f"{publication.manifest.version} is under way."
            )
        publication.check_complete()
        self._publication = None
        await self._driver.exclusive(partial(self._sleeper.serve, version))

    async def abort_load(self, reason: str) -> None:
        """Forget what `load` took, if anything; the old version stays."""
        if self._publication is not None:
            version = self._publication.manifest.version
            logger.info("engine load=aborted version=%d reason=%r", version, reason)
            self._publication = None
            if self._scheduler.is_asleep:
                await self._driver.exclusive(self._sleeper.forget_staged)

    async def close(self) -> None:
        """End every request with EngineError, end the threads and free the memory."""
        await self._driver.close()
        await asyncio.to_thread(self._copying.shutdown)
        self._publication = None
        self._scheduler.free()
        self._decoder.free()
        self._sleeper.close()

    def _begun(self, call: str) -> Publication:
        self._driver.check_served()
        if self._publication is None:
            raise TransferError(f"{call} came before begin_load; begin a publication first.")
        return self._publication
