import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.config import CorrectionConfig
from parity.algorithms.correction import importance_weights

LEVELS = pytest.mark.parametrize("level", ["off", "token", "sequence"])


def weigh(trainer, rollout, samples, level, cap=2.0):
    return importance_weights(
        torch.tensor(trainer, dtype=torch.float64, requires_grad=True),
        rollout_logprobs=torch.tensor(rollout, dtype=torch.float64),
        sample_index=torch.tensor(samples, dtype=torch.int64),
        config=CorrectionConfig(level=level, cap=cap),
    )


LN = math.log
# Ratios 1.5, 1.6 | 4, 0.25 | 0.5 for samples 5, 2 and 9, not in order.
TRAINER = [LN(1.5), LN(4), LN(1.6), LN(0.25), LN(0.5)]
SAMPLES = [5, 2, 5, 2, 9]


def test_token_weights_are_ratios_cut_at_the_cap():
    terms = weigh(TRAINER, [0.0] * 5, SAMPLES, "token")
    assert terms.weights.tolist() == pytest.approx([1.5, 2.0, 1.6, 0.25, 0.5])
    assert terms.is_truncated.tolist() == [False, True, False, False, False]


def test_sequence_weights_are_products_over_the_sample_cut_at_the_cap():
    terms = weigh(TRAINER, [0.0] * 5, SAMPLES, "sequence")
    assert terms.weights.tolist() == pytest.approx([2.0, 1.0, 2.0, 1.0, 0.5])  # 1.5 * 1.6 = 2.4
    assert terms.is_truncated.tolist() == [True, False, True, False, False]


def test_off_gives_ones_and_truncates_nothing():
    terms = weigh(TRAINER, [0.0] * 5, SAMPLES, "off")
    assert terms.weights.tolist() == [1.0] * 5
    assert not terms.is_truncated.any()


@LEVELS
def test_equal_logprobs_give_exactly_one(level):
    terms = weigh(TRAINER, TRAINER, SAMPLES, level, cap=1.0)
    assert terms.weights.tolist() == [1.0] * 5
    assert not terms.is_truncated.any()


@LEVELS
def test_no_gradient_flows_through_the_weights(level):
    assert not weigh(TRAINER, [0.0] * 5, SAMPLES, level).weights.requires_grad


@LEVELS
def test_no_tokens_give_no_weights(level):
    terms = weigh([], [], [], level)
    assert terms.weights.shape == terms.is_truncated.shape == (0,)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("difference", [-1e30, -1e4, -100.0, 100.0, 1e4, 1e30])
def test_extreme_differences_stay_between_zero_and_the_cap(level, difference):
    terms = importance_weights(
        torch.tensor([difference, 0.0]),
        rollout_logprobs=torch.zeros(2),
        sample_index=torch.tensor([0, 1]),
        config=CorrectionConfig(level=level, cap=3.0),
    )
    assert terms.weights.tolist() == pytest.approx([3.0 if difference > 0 else 0.0, 1.0], abs=1e-40)
    assert terms.is_truncated.tolist() == [difference > 0, False]


def test_a_long_sequence_reaches_the_cap_where_its_tokens_do_not():
    # 0.012 a token over 100 tokens is a factor of 3.3 (public fault I5).
    token = weigh([0.012] * 100, [0.0] * 100, [0] * 100, "token")
    sequence = weigh([0.012] * 100, [0.0] * 100, [0] * 100, "sequence")
    assert token.weights.tolist() == pytest.approx([math.exp(0.012)] * 100)
    assert not token.is_truncated.any()
    assert sequence.weights.tolist() == pytest.approx([2.0] * 100)
    assert sequence.is_truncated.all()


@pytest.mark.parametrize(("level", "expected"), [("token", [0, 1]), ("sequence", [0, 1, 2])])
def test_nan_spreads_no_further_than_its_token_or_sample(level, expected):
    terms = weigh([math.nan, -1, -1, -1], [-1, math.nan, -1, -1], [0, 1, 1, 2], level)
    assert terms.weights.isnan().nonzero().flatten().tolist() == expected


@LEVELS
@settings(max_examples=50, deadline=None)
@given(
    tokens=st.lists(
        st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.integers(0, 4)), min_size=1, max_size=30
    ),
    data=st.data(),
)
def test_order_of_tokens_and_names_of_samples_change_nothing(level, tokens, data):
    order = list(data.draw(st.permutations(range(len(tokens)))))
    expected = weigh(*zip(*tokens, strict=True), level).weights
    shuffled = [(a, b, 50 - 7 * s) for a, b, s in (tokens[i] for i in order)]
    torch.testing.assert_close(weigh(*zip(*shuffled, strict=True), level).weights, expected[order])
