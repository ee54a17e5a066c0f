"""The contract of an engine: what generates tokens.

Who may call what: `generate`, `abort`, `pause` and `resume` from the driver's event loop,
any number of `generate` calls at once; the four weight calls from one publisher at a time.
What stays true: the ids that come back are the ids that were sampled; every token carries
the version it was sampled under; after `abort_load` the engine still serves what it served
before `begin_load`; `commit_load(v)` makes `version == v` for every token sampled later.
A request that can't be served ends with EngineError; none waits for ever after `close`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parity.types import Completion, Sampling

if TYPE_CHECKING:
    import torch

    from parity.weights.manifest import Manifest


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What callers may ask an engine for."""

    updates_in_flight: bool  # weights can change between two tokens of a request
    is_seeded: bool  # a request with a seed is reproducible on the same build and batch shape
    returns_logprobs: bool = True
    can_sleep: bool = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start; differences over time give rates."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    decoded_rows: int | None = None  # of all decoding passes; None: not counted by this engine
    busy_s: float = 0.0  # time inside forward passes and sampling
    running: int = 0
    waiting: int = 0


class Engine(ABC):
    """Generates completions for token prompts."""

    @property
    @abstractmethod
    def capabilities(self) -> EngineCapabilities:
        """What this engine can do."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The weight version that is served now."""

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Prompt plus answer tokens that one request may have."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Counters since the start."""

    @abstractmethod
    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        """Sample one completion of `tokens` (at least one id).

        Raises EngineError where the request can't be served (empty, too long, engine closed).
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort` and the tokens it has; else do nothing."""

    @abstractmethod
    async def pause(self) -> None:
        """Stop between two decoding steps; requests keep their state. Returns when stopped."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on decoding after `pause`."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until no request is running or waiting."""

    @abstractmethod
    async def begin_load(self, manifest: "Manifest") -> None:
        """Begin a publication; refuses (TransferError) a manifest that doesn't fit the model."""

    @abstractmethod
    async def load(self, tensors: Iterable[tuple[str, "torch.Tensor"]]) -> None:
        """Take the next tensors of the publication; decoding goes on with the old ones."""

    @abstractmethod
    async def commit_load(self, version: int) -> None:
        """Verify the inventory and serve the new weights from the next decoding step on."""

    @abstractmethod
    async def abort_load(self, reason: str) -> None:
        """Forget what `load` took; the old version stays."""

    @abstractmethod
    async def close(self) -> None:
        """End every request with EngineError and free the memory."""
