import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.algorithms.aggregation import token_weights
from parity.algorithms.config import (
    CorrectionConfig,
    EntropyConfig,
    KlConfig,
    PpoClipLossConfig,
)
from parity.algorithms.losses.ppo_clip import ppo_clip
from parity.algorithms.objective import (
    NOT_FINITE,
    TOKENS,
    PolicyObjective,
    SftObjective,
    TokenFields,
    means,
)

PLAIN = PolicyObjective(
    policy_loss=ppo_clip,
    loss=PpoClipLossConfig(old_logprobs="trainer"),
    kl=KlConfig(),
    entropy=EntropyConfig(),
    correction=CorrectionConfig(level="off"),
)
FULL = replace(
    PLAIN,
    kl=KlConfig(coefficient=0.1),
    entropy=EntropyConfig(coefficient=0.01),
    correction=CorrectionConfig(level="sequence"),
)
SEQUENCE_MEAN = replace(
    FULL, loss=PpoClipLossConfig(aggregation="sequence_mean", old_logprobs="trainer")
)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def batch(lengths, *, mode="token_mean", seed=0):
    """Random fields of a whole batch; the samples have `lengths` tokens."""
    generator = torch.Generator().manual_seed(seed)
    sample_index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    size = len(sample_index)

    def noise(scale):
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    old = noise(1.0) - 2.0
    return TokenFields(
        logprobs=old + noise(0.3),
        old_logprobs=old,
        rollout_logprobs=old + noise(0.3),
        reference_logprobs=old + noise(0.5),
        entropy=noise(1.0).abs(),
        advantages=noise(1.0),
        weights=token_weights(sample_index, mode),
        sample_index=sample_index,
    )


def select(fields, chosen):
    """The fields of some of the tokens."""
    names = TokenFields.__dataclass_fields__
    columns = {name: getattr(fields, name) for name in names}
    return TokenFields(**{n: None if c is None else c[chosen] for n, c in columns.items()})


def evaluate(objective, fields):
    """Loss, gradient with respect to log-probs and entropy, and sums as floats."""
    logprobs, entropy = fields.logprobs.clone().requires_grad_(), fields.entropy.clone()
    entropy.requires_grad_(objective.needs_entropy_gradient)
    terms = objective(replace(fields, logprobs=logprobs, entropy=entropy))
    terms.loss.backward()
    assert not any(total.requires_grad for total in terms.sums.values())
    entropy_gradient = torch.zeros_like(entropy) if entropy.grad is None else entropy.grad
    sums = {name: total.item() for name, total in terms.sums.items()}
    return terms.loss.detach(), torch.stack([logprobs.grad, entropy_gradient]), sums


def two_tokens(**changes):
    fields = TokenFields(
        logprobs=column(-1.0, -2.0),
        old_logprobs=column(-1.1, -2.0),
        rollout_logprobs=column(-1.5, -1.8),
        reference_logprobs=column(-1.2, -2.0),
        entropy=column(0.5, 1.5),
        advantages=column(2.0, -1.0),
        weights=column(0.5, 0.5),
        sample_index=torch.tensor([0, 1]),
    )
    return replace(fields, **changes)


def test_the_loss_of_two_tokens_is_what_the_formula_says():
    objective = replace(FULL, correction=CorrectionConfig(level="token", cap=1.2))
    loss, _, sums = evaluate(objective, two_tokens())
    weights = [1.2, math.exp(-0.2)]  # exp(0.4) = 1.49 is cut
    policy = [-2.0 * math.exp(0.1), 1.0]
    k3 = [math.exp(-0.2) - 1 + 0.2, 0.0]
    expected = sum(
        0.5 * (w * p + 0.1 * k - 0.01 * h)
        for w, p, k, h in zip(weights, policy, k3, [0.5, 1.5], strict=True)
    )
    assert loss.item() == pytest.approx(expected)
    assert means(sums) == pytest.approx(
        {
            "train/clip_fraction": 0.0,
            "train/ppo_kl": (-0.1 + 0.0) / 2,
            "train/train_rollout_logprob_abs_diff": (0.4 + 0.2) / 2,
            "train/train_rollout_kl": (math.exp(0.4) - 1.4 + math.exp(-0.2) - 0.8) / 2,
            "train/correction_weight": sum(weights) / 2,
            "train/correction_truncated_share": 0.5,
            "train/kl_reference": k3[0] / 2,
            "train/entropy": 1.0,
        },
        rel=1e-5,
    )
    assert (sums[TOKENS], sums[NOT_FINITE]) == (2.0, 0.0)


def test_current_old_and_rollout_logprobs_each_have_their_own_place():
    # ratio = current / old, correction = old / rollout (public fault I4).
    fields = two_tokens(advantages=column(1.0, 1.0), weights=column(1.0, 0.0))
    objective = replace(PLAIN, correction=CorrectionConfig(level="token", cap=10.0))
    loss, _, _ = evaluate(objective, fields)
    assert loss.item() == pytest.approx(-math.exp(-1.1 + 1.5) * math.exp(-1.0 + 1.1))


def test_without_old_logprobs_the_ratio_is_one_and_ppo_kl_is_taken_against_the_engine():
    fields = two_tokens(old_logprobs=None)
    loss, gradient, sums = evaluate(PLAIN, fields)
    assert loss.item() == 0.5 * -2.0 + 0.5 * 1.0
    assert gradient[0].tolist() == [-1.0, 0.5]
    assert means(sums)["train/ppo_kl"] == pytest.approx((-0.5 + 0.2) / 2)
    assert means(sums)["train/train_rollout_logprob_abs_diff"] == pytest.approx((0.5 + 0.2) / 2)
    assert PLAIN(fields).ratio_max.item() == 1.0


def test_rollout_as_old_takes_the_ratio_against_the_engine_and_still_measures_the_mismatch():
    objective = replace(PLAIN, loss=PpoClipLossConfig(old_logprobs="rollout", clip_high=1.0))
    terms = objective(two_tokens(old_logprobs=None))
    assert terms.loss.item() == pytest.approx(0.5 * -2.0 * math.exp(0.5) + 0.5 * math.exp(-0.2))
    assert terms.ratio_max.item() == pytest.approx(math.exp(0.5))
    sums = {name: total.item() for name, total in terms.sums.items()}
    assert means(sums)["train/ppo_kl"] == pytest.approx((-0.5 + 0.2) / 2)
    assert means(sums)["train/train_rollout_logprob_abs_diff"] == pytest.approx((0.5 + 0.2) / 2)


def test_rollout_as_old_refuses_a_correction_of_the_same_gap():
    with pytest.raises(AssertionError, match=r"correction\.level=token"):
        replace(
            PLAIN,
            loss=PpoClipLossConfig(old_logprobs="rollout"),
            correction=CorrectionConfig(level="token"),
        )


@pytest.mark.parametrize(
    ("objective", "missing"),
    [
        (replace(PLAIN, kl=KlConfig(coefficient=0.1)), "reference_logprobs"),
        (replace(PLAIN, entropy=EntropyConfig(coefficient=0.1)), "entropy"),
    ],
)
def test_a_missing_ingredient_of_the_loss_is_an_error(objective, missing):
    with pytest.raises(AssertionError, match=f"{missing} is None"):
        objective(two_tokens(**{missing: None}))


def test_what_is_off_and_absent_has_no_metric():
    sums = PLAIN(two_tokens(reference_logprobs=None, entropy=None)).sums
    assert set(sums) == {
        TOKENS,
        NOT_FINITE,
        "train/clip_fraction",
        "train/ppo_kl",
        "train/train_rollout_logprob_abs_diff",
        "train/train_rollout_kl",
    }


def test_a_reference_with_coefficient_zero_is_measured_but_not_trained_on():
    loss, gradient, sums = evaluate(PLAIN, two_tokens())
    alone, gradient_alone, _ = evaluate(PLAIN, two_tokens(reference_logprobs=None))
    assert torch.equal(loss, alone) and torch.equal(gradient, gradient_alone)
    assert sums["train/kl_reference"] > 0 and sums["train/entropy"] == 2.0


def test_tokens_without_advantage_have_no_policy_loss_but_kl_and_entropy_still_act():
    fields = two_tokens(advantages=column(0.0, 0.0))
    loss, gradient, _ = evaluate(PLAIN, fields)
    assert loss.item() == 0.0 and not gradient.any()
    loss, gradient, _ = evaluate(FULL, fields)
    assert loss.item() != 0.0 and gradient[0, 0] != 0.0 and (gradient[1] == -0.005).all()


def test_an_empty_micro_batch_has_loss_zero_with_a_graph_and_no_metrics():
    empty = select(batch([3]), torch.zeros(3, dtype=torch.bool))
    for objective in (PLAIN, FULL, SEQUENCE_MEAN, SftObjective()):
        loss, gradient, sums = evaluate(objective, empty)
        assert loss.item() == 0.0 and gradient.shape == (2, 0)
        assert set(sums.values()) == {0.0}
        assert means(sums) == {}
    assert FULL(empty).ratio_max is None


BROKEN = ["logprobs", "old_logprobs", "rollout_logprobs", "reference_logprobs", "entropy"]


@pytest.mark.parametrize("name", [*BROKEN, "advantages", "weights"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_tokens_that_are_not_finite_are_counted_once_whatever_is_broken(name, value):
    fields = batch([2, 3])
    getattr(fields, name)[3] = value
    fields.logprobs[1] = fields.rollout_logprobs[1] = math.nan
    for objective in (PLAIN, FULL):
        sums = objective(fields).sums
        assert sums[NOT_FINITE].item() == 2.0
        assert sums[TOKENS].item() == 5.0


@pytest.mark.parametrize("difference", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_extreme_logprobs_stay_finite_in_loss_gradient_and_sums(difference, level):
    objective = replace(FULL, correction=CorrectionConfig(level=level))
    for name in ("logprobs", "old_logprobs", "rollout_logprobs", "reference_logprobs"):
        fields = select(batch([2, 3]), slice(None))
        getattr(fields, name)[3] += difference
        loss, gradient, sums = evaluate(objective, fields)
        assert loss.isfinite() and gradient.isfinite().all()
        assert all(math.isfinite(total) for total in sums.values())


def test_the_gradient_agrees_with_finite_differences():
    fields = batch([4, 1, 6], mode="sequence_mean")

    def loss(logprobs, entropy):
        return SEQUENCE_MEAN(replace(fields, logprobs=logprobs, entropy=entropy)).loss

    inputs = (fields.logprobs.clone().requires_grad_(), fields.entropy.clone().requires_grad_())
    assert torch.autograd.gradcheck(loss, inputs)


def test_sft_is_the_weighted_negative_log_likelihood():
    fields = two_tokens(logprobs=column(-1.0, -3.0), weights=column(0.25, 0.75))
    loss, gradient, sums = evaluate(SftObjective(), fields)
    assert loss.item() == 2.5
    assert gradient.tolist() == [[-0.25, -0.75], [0.0, 0.0]]
    assert sums == {TOKENS: 2.0, NOT_FINITE: 0.0, "train/entropy": 2.0}


def test_objectives_say_what_they_need():
    assert (PLAIN.needs_reference, PLAIN.needs_entropy_gradient) == (False, False)
    assert (FULL.needs_reference, FULL.needs_entropy_gradient) == (True, True)
    assert (SftObjective().needs_reference, SftObjective().needs_entropy_gradient) == (False, False)
    assert (PLAIN.aggregation, SEQUENCE_MEAN.aggregation) == ("token_mean", "sequence_mean")


OBJECTIVES = pytest.mark.parametrize(
    "objective",
    [PLAIN, FULL, SEQUENCE_MEAN, SftObjective(aggregation="sequence_mean")],
    ids=["plain", "full", "sequence_mean", "sft"],
)
lengths_of_samples = st.lists(st.integers(1, 8), min_size=1, max_size=8)


@OBJECTIVES
@settings(max_examples=25, deadline=None)
@given(lengths=lengths_of_samples, seed=st.integers(0, 1000), data=st.data())
def test_any_split_into_micro_batches_of_whole_samples_changes_nothing(
    objective, lengths, seed, data
):
    fields = batch(lengths, mode=objective.aggregation, seed=seed)
    loss, gradient, sums = evaluate(objective, fields)
    part_of_sample = data.draw(
        st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths))
    )
    part_of_token = torch.tensor(part_of_sample)[fields.sample_index]
    split_loss, split_gradient = torch.zeros_like(loss), torch.zeros_like(gradient)
    split_sums = dict.fromkeys(sums, 0.0)
    for part in range(4):  # some of them may be empty
        chosen = part_of_token == part
        part_loss, split_gradient[:, chosen], part_sums = evaluate(
            objective, select(fields, chosen)
        )
        split_loss += part_loss
        split_sums = {name: total + part_sums[name] for name, total in split_sums.items()}
    torch.testing.assert_close(split_loss, loss)
    torch.testing.assert_close(split_gradient, gradient)
    assert split_sums == pytest.approx(sums, rel=1e-5, abs=1e-5)


@OBJECTIVES
@settings(max_examples=25, deadline=None)
@given(lengths=lengths_of_samples, seed=st.integers(0, 1000), data=st.data())
def test_the_order_of_tokens_changes_nothing(objective, lengths, seed, data):
    fields = batch(lengths, mode=objective.aggregation, seed=seed)
    order = torch.tensor(data.draw(st.permutations(range(sum(lengths)))))
    loss, gradient, sums = evaluate(objective, fields)
    shuffled = replace(
        select(fields, order),
        weights=token_weights(fields.sample_index[order], objective.aggregation),
    )
    shuffled_loss, shuffled_gradient, shuffled_sums = evaluate(objective, shuffled)
    torch.testing.assert_close(shuffled_loss, loss)
    torch.testing.assert_close(shuffled_gradient, gradient[:, order])
    assert shuffled_sums == pytest.approx(sums, rel=1e-5, abs=1e-5)
