"""The canary: log-probs of a few fixed tokens, computed by both sides from the same weights.

It finds what digests can't: weights that arrived and are then used wrongly (a packed copy that
wasn't renewed, a tied head, a fused tensor in another order). Two forms: `Canary.check` on a
store that can score with weights aside, before the commit; `listen` on an engine that is live,
after it, through nothing but `generate`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parity.errors import TransferError
from parity.types import Sampling

if TYPE_CHECKING:
    from parity.engines.engine import Engine

NUM_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Canary:
    """Tokens, what the trainer says of them, and how far an engine may be off.

    `tokens` and `logprobs` are of one length; `logprobs[i]` is of token i given those before it,
    in nats at temperature 1 (the first one's is 0 and isn't compared). `tolerance` bounds the
    mean absolute difference.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float = 0.02

    def check(self, logprobs: Sequence[float]) -> float:
        """The mean difference in nats; raises TransferError where it is above the tolerance."""
        if len(logprobs) != len(self.tokens):
            raise TransferError(
                f"the canary has {len(self.tokens)} tokens and the engine scored {len(logprobs)}."
            )
        return _compare(self.logprobs[1:], logprobs[1:], self.tolerance)


def fixed_tokens(vocabulary_size: int, count: int = NUM_TOKENS) -> tuple[int, ...]:
    """The same spread-out ids on every machine."""
    return tuple((7919 * (index + 1)) % vocabulary_size for index in range(count))


async def listen(
    engine: "Engine",
    prompt: Sequence[int],
    score: Callable[[Sequence[int]], Sequence[float]],
    *,
    tolerance: float = 0.02,
) -> float:
    """Let a live engine answer, and compare its log-probs with the trainer's of the same tokens.

    Args:
        engine: which serves the version that the trainer holds.
        prompt: at least one id; the answer fills it up to 64 tokens where the engine doesn't
            end it before.
        score: log-prob of each token given those before it, under the trainer's weights.
        tolerance: of the mean absolute difference, in nats.

    Raises TransferError where they differ by more or nothing was answered.
    """
    room = max(1, min(NUM_TOKENS, engine.max_length) - len(prompt))
    sampling = Sampling(max_new_tokens=room, temperature=1.0, seed=0)
    completion = await engine.generate(tuple(prompt), sampling)
    if not completion.tokens:
        raise TransferError("the canary got no token from the engine, so nothing is compared.")
    theirs = score((*prompt, *completion.tokens))[len(prompt) :]
    return _compare(theirs, completion.logprobs, tolerance)


def _compare(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> float:
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    mean = sum(gaps) / len(gaps) if gaps else math.nan
    if not mean <= tolerance:  # NaN too
        raise TransferError(
            f"the canary's log-probs differ by {mean:.4g} nats on average between trainer and "
            f"engine (allowed {tolerance:g}): the weights arrived, but are used differently."
        )
    return mean
