"""One request on its way through the embedded engine, and what refuses it at the door.

Used by the engine (which checks and numbers requests) and by the scheduler (which decodes
them). A request never changes; what was sampled for it lives in `rows.py`.
"""

import math
from dataclasses import dataclass

from parity.errors import RequestError
from parity.types import Completion, Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A prompt, how to continue it, and the seed its noise comes from."""

    request_id: str
    tokens: tuple[int, ...]
    sampling: Sampling
    seed: int

    @property
    def num_total_tokens(self) -> int:
        """Prompt plus answer tokens at most."""
        return len(self.tokens) + self.sampling.max_new_tokens


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that left the scheduler, with its result."""

    request: Request
    completion: Completion


def check_prompt(
    tokens: tuple[int, ...], *, max_new_tokens: int, vocabulary_size: int, max_length: int
) -> None:
    """Refuse (RequestError) a prompt that is empty, too long or holds an unknown token id."""
    if not tokens:
        raise RequestError("the prompt is empty; an engine needs at least one token to continue.")
    if min(tokens) < 0 or max(tokens) >= vocabulary_size:
        raise RequestError(
            f"the prompt holds token ids from {min(tokens)} to {max(tokens)}; the model knows "
            f"0 to {vocabulary_size - 1}. Use the tokenizer that belongs to the model."
        )
    if len(tokens) + max_new_tokens > max_length:
        raise RequestError(
            f"the prompt has {len(tokens)} tokens and max_new_tokens is {max_new_tokens}, together "
            f"{len(tokens) + max_new_tokens}; one request may have {max_length}. Shorten one of "
            f"them or raise engine.max_length."
        )


def check_sampling(sampling: Sampling, *, can_decode_text: bool) -> None:
    """Refuse (RequestError) sampling settings outside their range."""
    if sampling.max_new_tokens < 1:
        raise RequestError(f"max_new_tokens is {sampling.max_new_tokens}; it must be >= 1.")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0.0):
        raise RequestError(f"temperature is {sampling.temperature}; it must be >= 0 and finite.")
    if not 0.0 < sampling.top_p <= 1.0:
        raise RequestError(f"top_p is {sampling.top_p}; it must be above 0 and at most 1.")
    if sampling.top_k < 0:
        raise RequestError(f"top_k is {sampling.top_k}; it must be >= 0, where 0 is off.")
    if "" in sampling.stop:
        raise RequestError("sampling.stop holds an empty string, which every text contains.")
    if sampling.stop and not can_decode_text:
        raise RequestError(
            "sampling.stop needs text, and this engine was built without a tokenizer's decode; "
            "use stop_token_ids or build the engine with `decode`."
        )
