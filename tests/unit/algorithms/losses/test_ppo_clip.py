import math

import pytest
import torch

from parity.algorithms.config import PpoClipLossConfig
from parity.algorithms.losses.ppo_clip import MAX_LOG_RATIO, ppo_clip

CONFIG = PpoClipLossConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
NO_DUAL = PpoClipLossConfig(clip_low=0.2, clip_high=0.28, dual_clip=None)


def score(ratio, advantage, config=CONFIG):
    """Loss, gradient with respect to the log-prob, and whether it was clipped, of one token."""
    old = torch.tensor([-1.5], dtype=torch.float64)
    logprob = (old + math.log(ratio)).requires_grad_()
    terms = ppo_clip(
        logprob, old_logprobs=old, advantages=torch.tensor([advantage]).double(), config=config
    )
    terms.loss.sum().backward()
    return terms.loss.item(), logprob.grad.item(), terms.is_clipped.item()


# ratio, advantage -> loss, gradient (d loss / d logprob = loss where unclipped), clipped
HAND_COMPUTED = [
    (1.0, 2.0, -2.0, -2.0, False),
    (1.1, 2.0, -2.2, -2.2, False),
    (1.5, 2.0, -2.56, 0.0, True),  # 1.28 * 2
    (0.5, 2.0, -1.0, -1.0, False),  # a ratio below the range is no reason to stop raising it
    (1.0, -2.0, 2.0, 2.0, False),
    (0.9, -2.0, 1.8, 1.8, False),
    (0.5, -2.0, 1.6, 0.0, True),  # 0.8 * 2
    (2.0, -2.0, 4.0, 4.0, False),
    (5.0, -2.0, 6.0, 0.0, True),  # dual clip: 3 * 2
    (5.0, 0.0, 0.0, 0.0, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient", "clipped"), HAND_COMPUTED)
def test_hand_computed_tokens(ratio, advantage, loss, gradient, clipped):
    got = score(ratio, advantage)
    assert got == (pytest.approx(loss, abs=1e-12), pytest.approx(gradient, abs=1e-12), clipped)


def test_without_dual_clip_a_large_ratio_with_negative_advantage_is_not_capped():
    got = score(5.0, -2.0, NO_DUAL)
    assert got == (pytest.approx(10.0), pytest.approx(10.0), False)


def test_the_two_bounds_are_separate():
    wide = PpoClipLossConfig(clip_low=0.0, clip_high=1.0)
    assert score(1.9, 1.0, wide) == (pytest.approx(-1.9), pytest.approx(-1.9), False)
    assert score(0.9, -1.0, wide) == (pytest.approx(1.0), 0.0, True)


def test_the_ratio_of_equal_logprobs_is_exactly_one_with_full_gradient():
    logprobs = torch.randn(64).requires_grad_()
    advantages = torch.randn(64)
    for config in (CONFIG, PpoClipLossConfig(clip_low=0.0, clip_high=0.0)):
        terms = ppo_clip(
            logprobs, old_logprobs=logprobs.detach(), advantages=advantages, config=config
        )
        (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
        assert torch.equal(terms.ratio, torch.ones(64))
        assert torch.equal(gradient, -advantages)
        assert not terms.is_clipped.any()


@pytest.mark.parametrize("config", [CONFIG, NO_DUAL], ids=["dual", "no_dual"])
@pytest.mark.parametrize("log_ratio", [-1e30, -1e4, -100.0, -20.1, 20.1, 100.0, 1e4, 1e30])
@pytest.mark.parametrize("advantage", [-2.0, 0.0, 2.0])
def test_extreme_log_ratios_have_finite_values_and_no_gradient(log_ratio, advantage, config):
    logprobs = torch.tensor([log_ratio], requires_grad=True)
    terms = ppo_clip(
        logprobs, old_logprobs=torch.zeros(1), advantages=torch.tensor([advantage]), config=config
    )
    terms.loss.sum().backward()
    assert terms.loss.isfinite().all() and terms.ratio.isfinite().all()
    assert terms.loss.abs() <= abs(advantage) * math.exp(MAX_LOG_RATIO) * 1.001
    assert logprobs.grad.item() == 0.0
    assert terms.is_clipped.item() == (advantage != 0.0)


def test_a_nan_logprob_stays_visible():
    terms = ppo_clip(
        torch.tensor([math.nan, -1.0]),
        old_logprobs=torch.tensor([-1.0, -1.0]),
        advantages=torch.tensor([1.0, 1.0]),
        config=CONFIG,
    )
    assert terms.loss.isnan().tolist() == [True, False]


@pytest.mark.parametrize("config", [CONFIG, NO_DUAL], ids=["dual", "no_dual"])
def test_the_gradient_agrees_with_finite_differences(config):
    # Ratios from 0.4 to 6 on both signs, none within 1e-3 of a kink.
    log_ratio = torch.linspace(-0.9, 1.8, 40, dtype=torch.float64)
    old = torch.linspace(-3, -1, 40, dtype=torch.float64)
    for sign in (-1.7, 1.7):
        advantages = torch.full((40,), sign, dtype=torch.float64)
        logprobs = (old + log_ratio).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, a=advantages: ppo_clip(x, old_logprobs=old, advantages=a, config=config).loss,
            (logprobs,),
            eps=1e-6,
        )
