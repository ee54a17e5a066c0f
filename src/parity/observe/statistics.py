"""What a handful of graded answers says about a model: estimates, and how sure they are.

Used by evaluation and advice. Plain Python, no arrays. Invariants: an answer without a reward
(None) is left out and never counted as wrong; where nothing is known the result is None or the
widest interval; random resampling is seeded, so the same answers give the same interval.
"""

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import TypeVar

AnswerT = TypeVar("AnswerT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval, and over how many tasks; the rest was unknown."""

    value: float
    low: float
    high: float
    num_tasks: int
    num_unknown: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of `k` answers is right, if `c` of `n` sampled ones were.

    Unbiased: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, equation 1), as a product that
    can't overflow. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n; n={n}, c={c}, k={k}.")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def mean_pass_at_k(
    per_task: Sequence[Sequence[bool | None]], k: int, *, seed: int = 0, confidence: float = 0.95
) -> Estimate | None:
    """pass@k over tasks with a bootstrap interval; None where no task has `k` known answers.

    Args:
        per_task: per task, whether each answer was right; None where it could not be graded.
            A task with fewer than `k` known answers is left out and counted as unknown.
    """
    values: list[float] = []
    for answers in per_task:
        known = [answer for answer in answers if answer is not None]
        if len(known) >= k:
            values.append(pass_at_k(len(known), sum(known), k))
    if not values:
        return None
    low, high = bootstrap_interval(values, seed=seed, confidence=confidence)
    return Estimate(fmean(values), low, high, len(values), len(per_task) - len(values))


def majority_vote(answers: Sequence[AnswerT | None]) -> AnswerT | None:
    """The most frequent known answer, the earliest of several; None where none is known."""
    counts = Counter(answer for answer in answers if answer is not None)
    return max(counts, key=counts.__getitem__) if counts else None  # first among equals


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """The interval of a share by Wilson's score (1927): (low, high), (0, 1) for no trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes is {successes}; it must lie between 0 and trials={trials}.")
    if trials == 0:
        return 0.0, 1.0
    z = _quantile(confidence)
    share = successes / trials
    scale = 1 + z * z / trials
    center = (share + z * z / (2 * trials)) / scale
    spread = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else max(0.0, center - spread)
    high = 1.0 if successes == trials else min(1.0, center + spread)
    return low, high


def bootstrap_interval(
    values: Sequence[float], *, seed: int = 0, confidence: float = 0.95, num_resamples: int = 1000
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of `values` (at least one, all finite)."""
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"the bootstrap needs finite values, at least one; found {len(values)}.")
    _quantile(confidence)
    source = random.Random(seed)
    count = len(values)
    means = sorted(math.fsum(source.choices(values, k=count)) / count for _ in range(num_resamples))
    tail = (1 - confidence) / 2
    last = num_resamples - 1
    return means[round(tail * last)], means[round((1 - tail) * last)]


def expected_informative_share(success_rate: float, group_size: int) -> float:
    """The share of groups with both right and wrong answers, if every task were equally hard.

    1 - p^n - (1 - p)^n; tasks of mixed difficulty with the same mean give less.
    """
    if not 0 <= success_rate <= 1 or group_size < 1:
        raise ValueError(
            f"success_rate={success_rate} must lie in [0, 1] and group_size={group_size} be >= 1."
        )
    return max(0.0, 1 - success_rate**group_size - (1 - success_rate) ** group_size)


def _quantile(confidence: float) -> float:
    """Two-sided standard normal quantile."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1.")
    return NormalDist().inv_cdf(0.5 + confidence / 2)
