"""The contract of an engine: what generates tokens.

Who may call what: `generate`, `abort`, `pause` and `resume` from the driver's event loop,
any number of `generate` calls at once; the four weight calls from one publisher at a time.
What stays true: the ids that come back are the ids that were sampled; every token carries
the version it was sampled under; after `abort_load` the engine still serves what it served
before `begin_load`; `commit_load(v)` makes `version == v` for every token sampled later.
A request that can't be served ends with RequestError where another try can't help, with
EngineLostError where the engine was closed or has broken (which ends the run), and with
EngineError else: then it is tried again. None waits for ever after `close`.

An engine with `can_sleep` gives its memory up for a while (`sleep`, from the same caller as
`pause`), and is as it was after `wake`, whatever fails in between:

    level 1   no keys and values; the weights stay where they are
    level 2   the weights rest elsewhere too (memory of the host, a file)

Asleep it takes requests, aborts and publications, and decodes nothing. Unfinished requests go on
after `wake`: their keys and values are computed anew under the weights that are served then, so
a request with a seed draws the tokens it would have drawn without the sleep, with log-probs equal
up to rounding. A version committed while asleep is what `wake` serves.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from parity.errors import UnsupportedError
from parity.types import Completion, Sampling

if TYPE_CHECKING:
    import torch

    from parity.weights.manifest import Manifest

SleepLevel = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """What callers may ask an engine for."""

    updates_in_flight: bool  # weights can change between two tokens of a request
    is_seeded: bool  # a request with a seed is reproducible on the same build and batch shape
    returns_logprobs: bool = True
    can_sleep: bool = False  # `sleep` and `wake` are there


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start; differences over time give rates."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    decoded_rows: int | None = None  # of all decoding passes; None: not counted by this engine
    busy_s: float = 0.0  # time inside forward passes and sampling
    running: int = 0
    waiting: int = 0
    is_asleep: bool = False


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

    def metrics(self) -> dict[str, float]:
        """What a step's record says of it beside `stats`; asked for once a step."""
        return {}

    @abstractmethod
    async def generate(
        self, tokens: tuple[int, ...], sampling: Sampling, *, request_id: str | None = None
    ) -> Completion:
        """Sample one completion of `tokens` (at least one id).

        Raises RequestError where no engine of this kind can serve it (empty, too long),
        EngineLostError where this one serves nothing any more, EngineError where a try failed.
        """

    async def check(self) -> int:
        """The version that is served, asked of what serves it; raises where that answers no more.

        Answers at once, also while the engine is paused, asleep, or takes weights. This one asks
        for the end of a request that nobody has.
        """
        await self.abort("parity-check")
        return self.version

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request with finish reason `abort` and the tokens it has; else do nothing."""

    @abstractmethod
    async def pause(self) -> None:
        """Stop between two decoding steps; requests keep their state. Returns when stopped."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on decoding after `pause`."""

    async def sleep(self, level: SleepLevel = 1) -> None:
        """Give up memory until `wake`; a deeper level may follow, and a lower one changes nothing.

        Raises EngineError where a publication is under way, or the weights can't be put aside;
        the engine then goes on as it was. Raises UnsupportedError without `can_sleep`.
        """
        raise UnsupportedError(_sleepless(self, level))

    async def wake(self) -> None:
        """Take the memory again and go on; does nothing where the engine is awake.

        Raises EngineError where there is too little memory; the engine then sleeps on, loses
        nothing, and may be woken later. Raises UnsupportedError without `can_sleep`.
        """
        raise UnsupportedError(_sleepless(self, None))

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
        """End every request with EngineLostError and free the memory."""


def _sleepless(engine: Engine, level: SleepLevel | None) -> str:
    wish = "can't be woken" if level is None else f"can't sleep (level {level} was asked)"
    return (
        f"{type(engine).__name__} {wish}, as its capabilities say; give engine and trainer devices"
        " of their own."
    )
