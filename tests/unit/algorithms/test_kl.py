import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.kl import MAX_LOG_RATIO, SERIES_RADIUS, kl_penalty

ESTIMATORS = pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])


def estimate(d, estimator, dtype=torch.float64):
    """Value and gradient for reference - current = d, with the current log-prob at 0."""
    current = torch.zeros(1, dtype=dtype, requires_grad=True)
    value = kl_penalty(
        current, reference_logprobs=torch.tensor([d], dtype=dtype), estimator=estimator
    )
    (gradient,) = torch.autograd.grad(value.sum(), current)
    return value.item(), gradient.item()


@pytest.mark.parametrize("d", [-3.0, -0.5, 0.0, 0.01, 0.5, 3.0])
def test_values_and_gradients_follow_the_formulas(d):
    assert estimate(d, "k1") == (-d, 1.0)
    assert estimate(d, "k2") == (d * d / 2, pytest.approx(-d))
    value, gradient = estimate(d, "k3")
    assert value == pytest.approx(math.exp(d) - 1 - d, rel=1e-9, abs=1e-15)
    assert gradient == pytest.approx(1 - math.exp(d), rel=1e-9, abs=1e-15)


@ESTIMATORS
def test_equal_logprobs_have_no_divergence(estimator):
    logprobs = torch.randn(50)
    value = kl_penalty(logprobs, reference_logprobs=logprobs, estimator=estimator)
    assert torch.equal(value, torch.zeros(50))


@ESTIMATORS
@pytest.mark.parametrize("d", [-1e18, -1e4, -100.0, 100.0, 1e4, 1e18])
def test_extreme_log_ratios_are_finite_in_value_and_gradient(estimator, d):
    value, gradient = estimate(d, estimator, torch.float32)
    assert math.isfinite(value) and math.isfinite(gradient)
    assert estimator == "k1" or value > 0
    assert gradient != 0.0  # still pulled back


def test_k3_is_a_line_with_the_documented_slope_beyond_its_limit():
    slope = math.exp(MAX_LOG_RATIO)
    for d in (MAX_LOG_RATIO, 100.0, 1e4):
        value, gradient = estimate(d, "k3")
        assert value == pytest.approx(slope * (1 + d - MAX_LOG_RATIO) - 1 - d)
        assert gradient == pytest.approx(1 - slope)


@pytest.mark.parametrize("edge", [-SERIES_RADIUS, SERIES_RADIUS, MAX_LOG_RATIO])
def test_k3_is_smooth_where_its_formula_changes(edge):
    below, at, above = (estimate(edge + step, "k3") for step in (-1e-9, 0.0, 1e-9))
    for other in (below, above):
        assert other[0] == pytest.approx(at[0], rel=1e-6)
        assert other[1] == pytest.approx(at[1], rel=1e-6)


@settings(max_examples=50, deadline=None)
@given(d=st.floats(-1 / 128, 1 / 128, width=32))
def test_k3_keeps_its_digits_and_its_sign_in_float32_near_zero(d):
    value, gradient = estimate(d, "k3", torch.float32)
    exact = d * d / 2 * (1 + d / 3 * (1 + d / 4 * (1 + d / 5 * (1 + d / 6))))
    assert value >= 0.0
    assert value == pytest.approx(exact, rel=1e-5, abs=1e-37)
    assert gradient == pytest.approx(-math.expm1(d), rel=1e-5, abs=1e-37)


@settings(max_examples=50, deadline=None)
@given(pair=st.tuples(st.floats(-200, 200), st.floats(-200, 200)))
def test_k3_is_never_negative_and_grows_away_from_zero(pair):
    near, far = sorted(pair, key=abs)
    values = [estimate(d, "k3")[0] for d in (near, math.copysign(far, near))]
    assert 0.0 <= values[0] <= values[1] * (1 + 1e-7)


@ESTIMATORS
def test_gradients_agree_with_finite_differences(estimator):
    d = torch.cat([torch.linspace(-12, 14, 60), torch.linspace(-0.2, 0.2, 40)]).double()
    reference = torch.full_like(d, -2.0)
    logprobs = (reference - d).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: kl_penalty(x, reference_logprobs=reference, estimator=estimator), (logprobs,)
    )


def test_k3_estimates_what_the_closed_form_says():
    logits = torch.tensor([[0.3, -0.4, 1.2, 0.0], [0.1, 0.5, -0.7, 0.2]], dtype=torch.float64)
    current, reference = logits.log_softmax(dim=1)
    exact = (current.exp() * (current - reference)).sum()
    for estimator in ("k1", "k3"):  # expectation over the current distribution
        values = kl_penalty(current, reference_logprobs=reference, estimator=estimator)
        torch.testing.assert_close((current.exp() * values).sum(), exact)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_average_gradients_are_those_of_the_documented_divergences(estimator):
    logits = torch.tensor([0.3, -0.4, 1.2, 0.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.5, -0.7, 0.2], dtype=torch.float64).log_softmax(dim=0)
    current = logits.log_softmax(dim=0)
    values = kl_penalty(current, reference_logprobs=reference, estimator=estimator)
    estimated = torch.autograd.grad((current.exp().detach() * values).sum(), logits)[0]
    current = logits.log_softmax(dim=0)
    forward = (current.exp() * (current - reference)).sum()
    backward = (reference.exp() * (reference - current)).sum()
    expected = torch.autograd.grad(forward if estimator == "k2" else backward, logits)[0]
    torch.testing.assert_close(estimated, expected)


@ESTIMATORS
def test_nan_stays_visible(estimator):
    value = kl_penalty(
        torch.tensor([math.nan, -1.0]), reference_logprobs=torch.zeros(2), estimator=estimator
    )
    assert value.isnan().tolist() == [True, False]
