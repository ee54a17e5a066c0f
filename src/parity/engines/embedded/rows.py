"""What is known about every request that is being decoded, one row each, as arrays.

Used by the scheduler only. A request keeps its row from start to end; arrays instead of
objects keep the Python work per token independent of the number of requests. Which slot of
the cache a request reads is in `lanes.py`.
"""

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
        self.num_live = 0
        self.requests: list[Request | None] = [None] * capacity
        self.is_live: Bools = np.zeros(capacity, np.bool_)
        self.newest: Ints = np.zeros(capacity, np.int64)  # token drawn last, not in the cache
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

    def live(self) -> Ints:
        """The rows of requests that are being decoded, ascending."""
        return np.flatnonzero(self.is_live)

    def take(self, count: int) -> Ints:
        """The lowest free rows, `count` of them; they are live from now on."""
        rows = np.flatnonzero(~self.is_live)[:count]
        self.is_live[rows] = True
        self.num_live += count
        return rows

    def put(self, row: int, request: Request, *, prompt_version: int) -> None:
        """Start a request whose whole prompt will be in the cache."""
        sampling = request.sampling
        self.requests[row] = request
        self.sampled[row] = 0
        self.limit[row] = sampling.max_new_tokens
        self.planned[row] = request.num_total_tokens
        self.seed[row] = request.seed & _SEED_MASK
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.top_k[row] = sampling.top_k
        self.has_stop_text[row] = bool(sampling.stop)
        self.prompt_version[row] = prompt_version
        self.stop_ids = _widened(self.stop_ids, len(sampling.stop_token_ids), _NO_TOKEN)
        self.stop_ids[row] = _NO_TOKEN
        self.stop_ids[row, : len(sampling.stop_token_ids)] = sampling.stop_token_ids
        self.tokens = _widened(self.tokens, sampling.max_new_tokens, 0)
        self.versions = _widened(self.versions, sampling.max_new_tokens, 0)
        self.logprobs = _widened(self.logprobs, sampling.max_new_tokens, 0)

    def required(self, row: int) -> Request:
        """The request of a row that is known to be live."""
        request = self.requests[row]
        if request is None:
            raise AssertionError(f"row {row} is free")
        return request

    def record(
        self, rows: Ints, ids: Ints, logprobs: npt.NDArray[np.float32], *, version: int
    ) -> None:
        """Append one sampled token to each of these rows."""
        place = self.sampled[rows]
        self.tokens[rows, place] = ids
        self.logprobs[rows, place] = logprobs
        self.versions[rows, place] = version
        self.sampled[rows] += 1
        self.newest[rows] = ids

    def hit_stop_id(self, rows: Ints, ids: Ints) -> Bools:
        """Which of these rows' newest tokens `ids` is one of the request's stop ids."""
        return (self.stop_ids[rows] == ids[:, None]).any(axis=1)

    def answer(self, row: int) -> Ints:
        """The tokens sampled so far (a view)."""
        return self.tokens[row, : self.sampled[row]]

    def history(self, row: int) -> tuple[int, ...]:
        """The tokens of a live row that belong into the cache: all but the newest."""
        return (*self.required(row).tokens, *self.answer(row)[:-1].tolist())

    def completion(self, row: int, reason: FinishReason) -> Completion:
        """What was sampled in a row."""
        count = self.sampled[row]
        return Completion(
            tokens=tuple(self.tokens[row, :count].tolist()),
            logprobs=tuple(self.logprobs[row, :count].tolist()),
            versions=tuple(self.versions[row, :count].tolist()),
            finish_reason=reason,
            prompt_version=int(self.prompt_version[row]),
        )

    def free(self, row: int) -> None:
        """Let go of a live row."""
        self.requests[row] = None
        self.is_live[row] = False
        self.num_live -= 1


def _widened(table: npt.NDArray[Kind], width: int, fill: int) -> npt.NDArray[Kind]:
    """The table with at least `width` columns; new ones hold `fill`."""
    missing = width - table.shape[1]
    if missing <= 0:
        return table
    added = np.full((table.shape[0], missing), fill, table.dtype)
    return np.concatenate([table, added], axis=1)
