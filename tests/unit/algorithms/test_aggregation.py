import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.aggregation import token_weights

MODES = pytest.mark.parametrize("mode", ["token_mean", "sequence_mean"])
samples_of_tokens = st.lists(st.integers(0, 6), min_size=1, max_size=60)


def index(values):
    return torch.tensor(values, dtype=torch.int64)


def test_token_mean_gives_every_token_the_same_weight():
    weights = token_weights(index([0, 1, 1, 1, 9]), "token_mean")
    assert weights.tolist() == pytest.approx([0.2] * 5)
    assert weights.dtype == torch.float32


def test_sequence_mean_gives_every_sample_the_same_weight():
    weights = token_weights(index([7, 3, 3, 7, 3, 3]), "sequence_mean")
    assert weights.tolist() == [0.25, 0.125, 0.125, 0.25, 0.125, 0.125]


def test_samples_of_1_3_and_8_tokens_give_the_global_token_mean():
    # Mean of micro-batch means would be 2.33 here (public fault H5).
    sample_index = index([0] + [1] * 3 + [2] * 8)
    values = torch.tensor([1.0] + [2.0] * 3 + [4.0] * 8)
    weights = token_weights(sample_index, "token_mean")
    parts = [(weights * values)[sample_index == sample].sum() for sample in range(3)]
    assert sum(parts).item() == pytest.approx(39 / 12)


@MODES
def test_no_tokens_give_no_weights(mode):
    weights = token_weights(index([]), mode)
    assert weights.shape == (0,) and weights.dtype == torch.float32


@MODES
@settings(max_examples=50, deadline=None)
@given(samples=samples_of_tokens)
def test_weights_are_positive_and_sum_to_one(mode, samples):
    weights = token_weights(index(samples), mode)
    assert (weights > 0).all()
    assert weights.double().sum().item() == pytest.approx(1.0, abs=1e-6)


@MODES
def test_weights_of_a_large_batch_still_sum_to_one(mode):
    sample_index = torch.randint(0, 3000, (1_000_000,))
    assert token_weights(sample_index, mode).double().sum().item() == pytest.approx(1.0, abs=1e-6)


@MODES
@settings(max_examples=50, deadline=None)
@given(samples=samples_of_tokens, data=st.data())
def test_order_of_tokens_and_names_of_samples_change_nothing(mode, samples, data):
    expected = token_weights(index(samples), mode)
    order = data.draw(st.permutations(range(len(samples))))
    renamed = index([1000 - 17 * samples[i] for i in order])
    assert torch.equal(token_weights(renamed, mode), expected[list(order)])
