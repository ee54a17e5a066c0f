import dataclasses
import logging
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.training.tiny import (
    CPU,
    FREE_ATTENTION,
    naive_logprobs,
    naive_loss,
    policy_objective,
    ragged_samples,
    sample,
    tiny_model,
    tiny_trainer,
)

from parity.algorithms.objective import SftObjective
from parity.errors import ConfigError, TrainingError
from parity.observe import names
from parity.training.config import AdamWConfig, ScheduleConfig, TrainerConfig
from parity.training.forward import Scorer, prepare_model
from parity.training.packing import pack

# With eps = 1 and no clipping, the first AdamW step moves a weight by g / (|g| + 1): smooth
# in the gradient, so that comparing weights compares gradients.
TELLING = AdamWConfig(lr=1.0, eps=1.0, beta1=0.0, beta2=0.0)
UNCLIPPED = {"max_grad_norm": None}


def weights_of(trainer):
    return {name: tensor.clone() for name, tensor in trainer.named_weights()}


def naive_weights(model, loss):
    """The weights after the first TELLING step on `loss`."""
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad / (parameter.grad.abs() + 1.0)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_equal_weights(found, expected, *, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("has_holes", [False, True])
def test_shared_rows_give_the_loss_and_every_gradient_of_plain_rows(family, has_holes):
    samples = ragged_samples(has_holes=has_holes)
    model = tiny_model(family)
    prepare_model(model, gradient_checkpointing=False, device=CPU)
    scorer = Scorer(model, config=TrainerConfig(), temperature=0.9, device=CPU)
    losses, gradients, widths = [], [], []
    for sharing in (False, True):
        batch = pack(
            samples,
            aggregation="token_mean",
            max_tokens=10_000,
            prefix_sharing=sharing,
            cost=FREE_ATTENTION,
        )
        loss = torch.zeros(())
        for part in batch.micro_batches:
            scores = scorer.scores(part, needs_entropy_gradient=True)
            values = scores.logprobs * part.advantages + 0.1 * scores.entropy
            loss = loss - (part.weights * values).sum()
        model.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        gradients.append({n: p.grad for n, p in model.named_parameters()})
        widths.append(batch.num_input_tokens)
    assert widths[1] < widths[0]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-5)
    assert_equal_weights(gradients[1], gradients[0])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    padding=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    max_tokens=st.sampled_from([1, 25, 60, 10_000]),
    sharing=st.sampled_from(["auto", "off"]),
    aggregation=st.sampled_from(["token_mean", "sequence_mean"]),
    entropy=st.sampled_from([0.0, 0.05]),
    has_holes=st.booleans(),
)
def test_a_step_is_that_of_padded_single_rows_for_any_order_split_and_padding(
    seed, padding, max_tokens, sharing, aggregation, entropy, has_holes
):
    samples = ragged_samples(num_groups=2, seed=seed, has_holes=has_holes)
    shuffled = random.Random(seed).sample(samples, len(samples))
    trainer = tiny_trainer(
        objective=policy_objective(entropy=entropy, aggregation=aggregation),
        optimizer=TELLING,
        config=TrainerConfig(
            max_tokens_per_micro_batch=max_tokens, prefix_sharing=sharing, **UNCLIPPED
        ),
        temperature=0.8,
    )
    report = trainer.step(shuffled)
    model = tiny_model().eval()
    loss = naive_loss(
        model,
        samples,
        aggregation=aggregation,
        temperature=0.8,
        entropy_coefficient=entropy,
        left=padding[0],
        right=padding[1],
    )
    assert report.metrics["train/loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert_equal_weights(weights_of(trainer), naive_weights(model, loss))


def test_sft_is_the_mean_negative_log_likelihood():
    samples = ragged_samples()
    trainer = tiny_trainer(objective=SftObjective())
    values = torch.cat(
        [naive_logprobs(tiny_model().eval(), s, temperature=1.0)[0] for s in samples]
    )
    report = trainer.step(
        [dataclasses.replace(s, advantages=(0.0,) * len(s.tokens)) for s in samples]
    )
    assert report.is_applied
    assert report.metrics["train/loss"] == pytest.approx(-values.mean().item(), abs=1e-5)


def test_skipping_the_backward_of_samples_without_advantage_changes_nothing():
    samples = [
        *ragged_samples(num_groups=2),
        *(sample([7, 8, 9], [k, 3], group=9, advantage=0.0) for k in range(4)),
    ]
    outcomes = []
    for kl in (0.0, 1e-30):  # the second one needs a gradient everywhere
        trainer = tiny_trainer(objective=policy_objective(kl=kl), optimizer=TELLING)
        report = trainer.step(samples)
        outcomes.append((report.metrics["train/loss"], weights_of(trainer)))
    assert outcomes[0][0] == pytest.approx(outcomes[1][0], abs=1e-6)
    assert_equal_weights(outcomes[0][1], outcomes[1][1])


def test_temperature_is_that_of_sampling_so_the_mismatch_is_zero():
    model = tiny_model().eval()
    samples = []
    for one in ragged_samples():
        with torch.no_grad():
            logprobs = naive_logprobs(model, one, temperature=0.6)[0].tolist()
        prompt = len(one.tokens) - len(logprobs)
        samples.append(dataclasses.replace(one, logprobs=(0.0,) * prompt + tuple(logprobs)))
    report = tiny_trainer(model, temperature=0.6).step(samples)
    assert report.metrics["train/train_rollout_logprob_abs_diff"] < 1e-5
    other = tiny_trainer(temperature=1.0).step(samples)
    assert other.metrics["train/train_rollout_logprob_abs_diff"] > 0.1


def test_every_metric_is_declared_and_counts_are_those_of_the_batch():
    samples = ragged_samples()
    trainer = tiny_trainer(objective=policy_objective(kl=0.1, entropy=0.1, correction="token"))
    report = trainer.step(samples)
    names.check(report.metrics)
    assert report.step == trainer.step_index == 1
    trained = sum(sum(one.loss_mask) for one in samples)
    assert report.metrics["train/tokens"] == trained
    assert report.metrics["train/trained_tokens_mean"] == trained / len(samples)
    assert 0.0 < report.metrics["train/prefix_shared_share"] < 1.0
    assert 0.0 <= report.metrics["train/padding_share"] < 1.0
    assert report.metrics["train/kl_reference"] == pytest.approx(0.0, abs=1e-9)
    assert report.metrics["train/skipped_steps"] == 0.0


def test_the_reference_stays_at_the_starting_weights():
    samples = ragged_samples()
    trainer = tiny_trainer(objective=policy_objective(kl=0.1), optimizer=AdamWConfig(lr=1e-3))
    kls = [trainer.step(samples).metrics["train/kl_reference"] for _ in range(3)]
    assert kls[0] == pytest.approx(0.0, abs=1e-9)
    assert kls[2] > kls[1] > 0.0


def test_grad_norm_is_reported_before_clipping_and_clipping_bounds_the_step():
    samples = ragged_samples()
    norms = []
    for bound in (None, 1e-3):
        trainer = tiny_trainer(optimizer=TELLING, config=TrainerConfig(max_grad_norm=bound))
        before = weights_of(trainer)
        norms.append(trainer.step(samples).metrics["train/grad_norm"])
        after = weights_of(trainer)
        moved = sum(float((after[n] - before[n]).square().sum()) for n in after) ** 0.5
        assert moved > 1e-2 if bound is None else moved < 1.1e-3
    assert norms[0] == pytest.approx(norms[1])
    assert norms[0] > 1e-2


@pytest.mark.parametrize("where", ["advantage", "rollout", "weight"])
def test_a_step_that_is_not_finite_is_refused_and_changes_nothing(where):
    samples = ragged_samples()
    trainer = tiny_trainer(objective=policy_objective(correction="token"))
    trainer.step(samples)
    bad = samples[3]
    if where == "advantage":
        bad = dataclasses.replace(bad, advantages=(float("nan"),) * len(bad.tokens))
    elif where == "rollout":
        bad = dataclasses.replace(bad, logprobs=(float("-inf"),) * len(bad.tokens))
    else:
        with torch.no_grad():
            trainer.model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.inf
    before, moments = weights_of(trainer), trainer._tensors()
    moments = {name: tensor.clone() for name, tensor in moments.items()}
    with pytest.raises(TrainingError, match=r"step 2 is refused.*isn't finite"):
        trainer.step([*samples[:3], bad, *samples[4:]])
    assert trainer.step_index == 1
    assert all(torch.equal(before[n], t) for n, t in trainer.named_weights())
    assert all(torch.equal(moments[n], t) for n, t in trainer._tensors().items())
    assert all(p.grad is None for p in trainer.model.parameters())
    if where != "weight":
        assert trainer.step(samples).is_applied


def test_a_gradient_that_is_not_finite_names_the_parameter():
    trainer = tiny_trainer()
    weight = trainer.model.model.layers[0].mlp.down_proj.weight
    weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([1]), torch.nan))
    before = weights_of(trainer)
    with pytest.raises(
        TrainingError, match=r"1 of 24 .* model.layers.0.mlp.down_proj.weight \(48\)"
    ):
        trainer.step(ragged_samples())
    assert all(torch.equal(before[n], t) for n, t in trainer.named_weights())


def test_a_gradient_whose_squares_overflow_is_refused():
    trainer = tiny_trainer()
    weight = trainer.model.model.layers[0].mlp.down_proj.weight
    weight.register_hook(lambda gradient: torch.full_like(gradient, 1e30))
    with pytest.raises(TrainingError, match="squares overflow"):
        trainer.step(ragged_samples())


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample([1, 2], [3, 4], mask=[False, False])],
        [sample([1, 2], [3, 4], advantage=0.0), sample([1, 2], [5], advantage=0.0)],
    ],
    ids=["empty", "all masked", "no advantage"],
)
def test_a_batch_with_nothing_to_learn_is_skipped_and_counted(samples, caplog):
    schedule = ScheduleConfig(shape="linear")
    trainer = tiny_trainer(schedule=schedule, optimizer=AdamWConfig(lr=1.0, weight_decay=0.1))
    before = weights_of(trainer)
    with caplog.at_level(logging.WARNING):
        report = trainer.step(samples)
    assert not report.is_applied
    assert report.metrics["train/skipped_steps"] == 1.0
    assert report.metrics["train/tokens"] == 0.0
    assert "train/grad_norm" not in report.metrics
    assert "left the weights alone" in caplog.text
    assert all(torch.equal(before[n], t) for n, t in trainer.named_weights())
    names.check(report.metrics)
    assert trainer.step_index == 1
    following = trainer.step(ragged_samples())
    assert following.metrics["train/learning_rate"] == pytest.approx(0.9)
    assert following.step == 2


def test_the_rate_follows_the_schedule():
    trainer = tiny_trainer(
        schedule=ScheduleConfig(shape="linear", warmup_steps=2),
        optimizer=AdamWConfig(lr=0.1),
        total_steps=4,
    )
    rates = [trainer.step(ragged_samples()).metrics["train/learning_rate"] for _ in range(4)]
    assert rates == pytest.approx([0.05, 0.1, 0.1, 0.05])


def test_logprobs_of_line_up_with_the_tokens():
    samples = [*ragged_samples(has_holes=True), sample([1, 2], [3], mask=[False])]
    trainer = tiny_trainer(config=TrainerConfig(max_tokens_per_micro_batch=30), temperature=0.7)
    for one, found in zip(samples, trainer.logprobs_of(samples), strict=True):
        mask = torch.tensor(one.loss_mask)
        assert found.shape == mask.shape
        assert (found[~mask] == 0.0).all()
        naive, _ = naive_logprobs(trainer.model, one, temperature=0.7)
        torch.testing.assert_close(found[mask].double(), naive, rtol=1e-4, atol=1e-4)


def test_named_weights_are_live_and_leave_aliases_out():
    trainer = tiny_trainer()
    names_of = [name for name, _ in trainer.named_weights()]
    assert "lm_head.weight" not in names_of
    assert trainer.aliases() == (("lm_head.weight", "model.embed_tokens.weight"),)
    before = weights_of(trainer)
    trainer.step(ragged_samples())
    changed = [n for n, t in trainer.named_weights() if not torch.equal(before[n], t)]
    assert changed == names_of


def test_prefix_sharing_is_switched_off_once_with_the_reason(caplog):
    model = tiny_model("llama")
    forward = model.model.forward
    model.model.forward = lambda *, attention_mask=None, **kwargs: forward(**kwargs)
    trainer = tiny_trainer(model)
    with caplog.at_level(logging.WARNING):
        reports = [trainer.step(ragged_samples()) for _ in range(2)]
    assert caplog.text.count("prefix_sharing_off") == 1
    assert all(r.metrics["train/prefix_shared_share"] == 0.0 for r in reports)


def test_temperature_zero_is_refused():
    with pytest.raises(ConfigError, match=r"sampling.temperature is 0"):
        tiny_trainer(temperature=0.0)


def test_steps_are_reproducible_bit_for_bit():
    weights = []
    for _ in range(2):
        trainer = tiny_trainer()
        for seed in range(3):
            trainer.step(ragged_samples(seed=seed))
        weights.append(weights_of(trainer))
    assert all(torch.equal(weights[0][n], weights[1][n]) for n in weights[0])


def test_training_raises_the_likelihood_of_rewarded_answers():
    good, bad = sample([1, 2, 3], [4, 5]), sample([1, 2, 3], [6, 7], advantage=-1.0)
    trainer = tiny_trainer(optimizer=AdamWConfig(lr=1e-2))
    before = [float(values.sum()) for values in trainer.logprobs_of([good, bad])]
    for _ in range(10):
        trainer.step([good, bad])
    after = [float(values.sum()) for values in trainer.logprobs_of([good, bad])]
    assert after[0] > before[0] + 1.0
    assert after[1] < before[1] - 1.0
