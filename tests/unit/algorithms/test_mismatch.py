import math

import pytest
import torch

from parity.algorithms.mismatch import mismatch


def test_both_numbers_follow_their_formulas():
    trainer = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    rollout = torch.tensor([-1.0, -1.5, -1.0], dtype=torch.float64)
    terms = mismatch(trainer, rollout_logprobs=rollout)
    assert terms.abs_diff.tolist() == [0.0, 0.5, 0.5]
    # The token came from the engine, so d = trainer - engine.
    assert terms.kl.tolist() == pytest.approx([0.0, math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5])
    assert not terms.abs_diff.requires_grad and not terms.kl.requires_grad


def test_kl_averages_to_the_divergence_of_the_engine_from_the_trainer():
    logits = torch.tensor([[0.3, -0.4, 1.2], [0.1, 0.5, -0.7]], dtype=torch.float64)
    trainer, rollout = logits.log_softmax(dim=1)
    estimated = (rollout.exp() * mismatch(trainer, rollout_logprobs=rollout).kl).sum()
    torch.testing.assert_close(estimated, (rollout.exp() * (rollout - trainer)).sum())


@pytest.mark.parametrize("difference", [-1e4, -100.0, 100.0, 1e4])
def test_large_differences_stay_finite_and_large(difference):
    terms = mismatch(torch.tensor([difference]), rollout_logprobs=torch.zeros(1))
    assert terms.abs_diff.item() == abs(difference)
    assert math.isfinite(terms.kl.item()) and terms.kl.item() > 90


@pytest.mark.parametrize(
    ("trainer", "rollout"),
    [(math.nan, -1.0), (-1.0, math.nan), (-math.inf, -1.0), (-1.0, -math.inf), (-math.inf,) * 2],
)
def test_a_broken_side_never_looks_perfect(trainer, rollout):
    terms = mismatch(torch.tensor([trainer]), rollout_logprobs=torch.tensor([rollout]))
    assert not terms.abs_diff.isfinite().any()
    assert not terms.kl.isfinite().any()
