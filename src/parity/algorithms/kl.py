"""Estimators of the KL divergence from a reference, one number per sampled token.

With d = log p_ref - log p for a token sampled from p:

    k1 = -d             unbiased, often negative; differentiated, its gradient averages to 0
    k2 = d^2 / 2        biased, >= 0; its gradient averages to that of KL(p || ref)
    k3 = e^d - 1 - d    unbiased, >= 0; its gradient averages to that of KL(ref || p)

Paper: Schulman, "Approximating KL Divergence" (2020); k3 is DeepSeekMath (Shao et al.
2024), eq. 4. The statements on gradients hold for tokens sampled from p itself, when the
estimate is part of a loss that is differentiated through log p, as ours is.

Gradient with respect to log p: 1 for k1, -d for k2, 1 - e^d for k3. Where we differ: above
d = MAX_LOG_RATIO k3 goes on as its tangent, so its gradient stays 1 - e^MAX_LOG_RATIO.
Nothing overflows, and a token that drifted far is still pulled back, which a clamp would
stop doing. Below 0.05 in magnitude k3 is summed as a series, because the closed form loses
its digits there and may turn negative.
"""

import math

from torch import Tensor

from parity.algorithms.config import KlEstimator

MAX_LOG_RATIO = 10.0  # natural log; e^10 is about 22,000
SERIES_RADIUS = 0.05  # relative error of the series at its edge: 2e-8


def kl_penalty(logprobs: Tensor, *, reference_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimate [T] of the KL divergence of `logprobs` from the reference, in nats.

    Differentiable; finite in value and gradient for every log-ratio of magnitude up to 1e18.
    """
    log_ratio = reference_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2.0
    return _k3(log_ratio)


def _k3(d: Tensor) -> Tensor:
    """e^d - 1 - d, accurate near 0 and linear above MAX_LOG_RATIO."""
    slope = math.exp(MAX_LOG_RATIO)
    above = (d - MAX_LOG_RATIO).relu()
    closed = d.clamp(max=MAX_LOG_RATIO).expm1() + slope * above - d
    near = d.clamp(-SERIES_RADIUS, SERIES_RADIUS)
    series = near.square() / 2.0 * (1.0 + near / 3.0 * (1.0 + near / 4.0 * (1.0 + near / 5.0)))
    return series.where(d.abs() < SERIES_RADIUS, closed)
