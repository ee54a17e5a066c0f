"""What is known about every request that is being decoded, one row per slot, as arrays.

Used by the scheduler only. Rows 0 to `size` - 1 are live or holes that finished requests
left; arrays instead of objects keep the Python work per token independent of the number of
requests. Row i belongs to slot i of the cache.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from parity.engines.embedded.request import Request
from parity.types import Completion, FinishReason

Kind = TypeVar("Kind", bound=np.generic)
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_SEED_MASK = 2**64 - 1
_NO_TOKEN = -1


class Rows:
    """The table of live requests."""

    def __init__(self, *, capacity: int) -> None:
        self.size = 0
        self.holes: list[int] = []
        self.requests: list[Request | None] = [None] * capacity
        self.next_token: Ints = np.zeros(capacity, np.int64)
        self.length: Ints = np.zeros(capacity, np.int64)  # tokens in the cache
        self.sampled: Ints = np.zeros(capacity, np.int64)  # answer tokens so far
        self.limit: Ints = np.zeros(capacity, np.int64)  # answer tokens at most
        self.planned: Ints = np.zeros(capacity, np.int64)  # prompt and answer tokens at most
        self.seed: npt.NDArray[np.uint64] = np.zeros(capacity, np.uint64)
        self.temperature: npt.NDArray[np.float32] = np.ones(capacity, np.float32)
        self.top_p: npt.NDArray[np.float64] = np.ones(capacity, np.float64)
        self.top_k: Ints = np.zeros(capacity, np.int64)
        self.has_stop_text: Bools = np.zeros(capacity, np.bool_)
        self.prompt_version: Ints = np.zeros(capacity, np.int64)
        self.stop_ids: Ints = np.full((capacity, 0), _NO_TOKEN, np.int64)
        self.tokens: Ints = np.zeros((capacity, 0), np.int64)
        self.versions: Ints = np.zeros((capacity, 0), np.int64)
        self.logprobs: npt.NDArray[np.float32] = np.zeros((capacity, 0), np.float32)

    @property
    def num_live(self) -> int:
        """Requests that are being decoded."""
        return self.size - len(self.holes)

    def take_slots(self, count: int) -> list[int]:
        """The lowest free slots, `count` of them; they count as live from now on."""
        holes = sorted(self.holes)
        from_holes, self.holes = holes[:count], holes[count:]
        added = range(self.size, self.size + count - len(from_holes))
        self.size += len(added)
        return [*from_holes, *added]

    def put(self, slot: int, request: Request, *, prompt_version: int) -> None:
        """Start a request whose whole prompt will be in the cache."""
        sampling = request.sampling
        self.requests[slot] = request
        self.length[slot] = len(request.tokens)
        self.sampled[slot] = 0
        self.limit[slot] = sampling.max_new_tokens
        self.planned[slot] = request.num_total_tokens
        self.seed[slot] = request.seed & _SEED_MASK
        self.temperature[slot] = sampling.temperature
        self.top_p[slot] = sampling.top_p
        self.top_k[slot] = sampling.top_k
        self.has_stop_text[slot] = bool(sampling.stop)
        self.prompt_version[slot] = prompt_version
        self.stop_ids = _widened(self.stop_ids, len(sampling.stop_token_ids), _NO_TOKEN)
        self.stop_ids[slot] = _NO_TOKEN
        self.stop_ids[slot, : len(sampling.stop_token_ids)] = sampling.stop_token_ids
        self.tokens = _widened(self.tokens, sampling.max_new_tokens, 0)
        self.versions = _widened(self.versions, sampling.max_new_tokens, 0)
        self.logprobs = _widened(self.logprobs, sampling.max_new_tokens, 0)

    def required(self, slot: int) -> Request:
        """The request of a slot that is known to be live."""
        request = self.requests[slot]
        if request is None:
            raise AssertionError(f"slot {slot} is free")
        return request

    def record(
        self, slots: Ints, ids: Ints, logprobs: npt.NDArray[np.float32], *, version: int
    ) -> None:
        """Append one sampled token to each of these slots."""
        place = self.sampled[slots]
        self.tokens[slots, place] = ids
        self.logprobs[slots, place] = logprobs
        self.versions[slots, place] = version
        self.sampled[slots] += 1
        self.next_token[slots] = ids

    def hit_stop_id(self, slots: Ints, ids: Ints) -> Bools:
        """Which of these slots' newest tokens `ids` is one of the request's stop ids."""
        return (self.stop_ids[slots] == ids[:, None]).any(axis=1)

    def answer(self, slot: int) -> Ints:
        """The tokens sampled so far (a view)."""
        return self.tokens[slot, : self.sampled[slot]]

    def completion(self, slot: int, reason: FinishReason) -> Completion:
        """What was sampled in a slot."""
        count = self.sampled[slot]
        return Completion(
            tokens=tuple(self.tokens[slot, :count].tolist()),
            logprobs=tuple(self.logprobs[slot, :count].tolist()),
            versions=tuple(self.versions[slot, :count].tolist()),
            finish_reason=reason,
            prompt_version=int(self.prompt_version[slot]),
        )

    def free(self, slot: int) -> None:
        """Make a live slot a hole."""
        self.requests[slot] = None
        self.has_stop_text[slot] = False
        self.stop_ids[slot] = _NO_TOKEN
        self.holes.append(slot)

    def plan_closing(self) -> tuple[list[int], list[int]]:
        """Which last live rows fill which holes: (sources, targets), all different."""
        live = self.size - len(self.holes)
        targets = sorted(hole for hole in self.holes if hole < live)
        holes = set(self.holes)
        sources = [slot for slot in range(live, self.size) if slot not in holes]
        return sources, targets

    def drop_holes(self) -> None:
        """The last rows are free after the moves of `plan_closing`."""
        self.size -= len(self.holes)
        self.holes = []

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Move live rows, all at once; what isn't a target afterwards counts as free."""
        for column in self._columns():
            column[targets] = column[sources]
        moved = [self.requests[source] for source in sources]
        for source in sources:
            self.requests[source] = None
        for target, request in zip(targets, moved, strict=True):
            self.requests[target] = request

    def _columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (
            self.next_token,
            self.length,
            self.sampled,
            self.limit,
            self.planned,
            self.seed,
            self.temperature,
            self.top_p,
            self.top_k,
            self.has_stop_text,
            self.prompt_version,
            self.stop_ids,
            self.tokens,
            self.versions,
            self.logprobs,
        )


def _widened(table: npt.NDArray[Kind], width: int, fill: int) -> npt.NDArray[Kind]:
    """The table with at least `width` columns; new ones hold `fill`."""
    missing = width - table.shape[1]
    if missing <= 0:
        return table
    added = np.full((table.shape[0], missing), fill, table.dtype)
    return np.concatenate([table, added], axis=1)
