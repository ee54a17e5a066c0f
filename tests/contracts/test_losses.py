"""What every policy loss must do, run over each registered one, third-party ones included."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.config import PpoClipLossConfig
from parity.algorithms.losses import LOSSES
from parity.algorithms.losses.loss import PolicyTerms, load_loss

EVERY_LOSS = pytest.mark.parametrize("name", LOSSES.names())
CONFIG = PpoClipLossConfig()
finite_logprobs = st.floats(-60, 0)
tokens = st.lists(
    st.tuples(finite_logprobs, finite_logprobs, st.floats(-5, 5)), min_size=1, max_size=20
)


def score(name, logprobs, old_logprobs, advantages):
    """Terms and the gradient of the summed loss."""
    logprobs = logprobs.clone().requires_grad_()
    terms = load_loss(name)(
        logprobs, old_logprobs=old_logprobs, advantages=advantages, config=CONFIG
    )
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
    return terms, gradient


def columns(rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype).reshape(-1, 3).unbind(dim=1)


@EVERY_LOSS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_token_gets_a_loss_a_ratio_and_a_flag(name, dtype):
    logprobs, old_logprobs, advantages = columns(torch.randn(7, 3).tolist(), dtype)
    terms, gradient = score(name, logprobs, old_logprobs, advantages)
    assert isinstance(terms, PolicyTerms)
    assert terms.loss.shape == terms.ratio.shape == terms.is_clipped.shape == (7,)
    assert terms.loss.dtype == terms.ratio.dtype == gradient.dtype == dtype
    assert terms.is_clipped.dtype == torch.bool
    assert not terms.ratio.requires_grad


@EVERY_LOSS
def test_no_tokens_are_no_losses(name):
    terms, _ = score(name, *columns([]))
    assert terms.loss.shape == terms.ratio.shape == terms.is_clipped.shape == (0,)


@EVERY_LOSS
@settings(max_examples=50, deadline=None)
@given(rows=tokens)
def test_loss_and_gradient_are_finite(name, rows):
    terms, gradient = score(name, *columns(rows))
    assert terms.loss.isfinite().all() and terms.ratio.isfinite().all()
    assert gradient.isfinite().all()


@EVERY_LOSS
@pytest.mark.parametrize("difference", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_extreme_log_ratios_are_finite_in_float32(name, difference, advantage):
    columns_of_one = columns([[difference, 0.0, advantage]], torch.float32)
    terms, gradient = score(name, *columns_of_one)
    assert terms.loss.isfinite().all() and terms.ratio.isfinite().all()
    assert gradient.isfinite().all()


@EVERY_LOSS
@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(finite_logprobs, finite_logprobs), min_size=1, max_size=20))
def test_no_advantage_means_no_loss_and_no_gradient(name, pairs):
    terms, gradient = score(name, *columns([(*pair, 0.0) for pair in pairs]))
    assert not terms.loss.any() and not gradient.any()
    assert not terms.is_clipped.any()


@EVERY_LOSS
@settings(max_examples=50, deadline=None)
@given(rows=tokens)
def test_descent_raises_good_tokens_and_lowers_bad_ones(name, rows):
    logprobs, old_logprobs, advantages = columns(rows)
    terms, gradient = score(name, logprobs, old_logprobs, advantages)
    assert (gradient * advantages <= 0).all()
    assert not gradient[terms.is_clipped].any()


@EVERY_LOSS
def test_on_policy_the_gradient_is_that_of_the_policy_gradient_theorem(name):
    logprobs, advantages = torch.randn(2, 50).double()
    terms, gradient = score(name, logprobs, logprobs.clone(), advantages)
    torch.testing.assert_close(gradient, -advantages)
    assert not terms.is_clipped.any()
    assert (terms.ratio == 1).all()


@EVERY_LOSS
def test_gradients_agree_with_finite_differences(name):
    generator = torch.Generator().manual_seed(1)
    old_logprobs, noise, advantages = torch.randn(3, 40, generator=generator).double()
    logprobs = (old_logprobs + 0.6 * noise).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: (
            load_loss(name)(x, old_logprobs=old_logprobs, advantages=advantages, config=CONFIG).loss
        ),
        (logprobs,),
    )


@EVERY_LOSS
@settings(max_examples=50, deadline=None)
@given(rows=tokens)
def test_a_token_depends_on_itself_alone(name, rows):
    together, gradient = score(name, *columns(rows))
    for position, row in enumerate(rows):
        alone, gradient_alone = score(name, *columns([row]))
        torch.testing.assert_close(together.loss[position], alone.loss[0])
        torch.testing.assert_close(gradient[position], gradient_alone[0])
        assert together.is_clipped[position] == alone.is_clipped[0]


@EVERY_LOSS
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_nan_comes_out_as_nan_in_its_own_token(name, broken):
    rows = [[-1.0, -1.1, 0.5], [-2.0, -2.1, 0.5]]
    rows[0][broken] = math.nan
    terms, _ = score(name, *columns(rows))
    assert terms.loss.isnan().tolist() == [True, False]
