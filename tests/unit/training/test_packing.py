import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.training.tiny import FREE_ATTENTION, ragged_samples, sample

from parity.errors import DataError
from parity.training.packing import pack


def packed(
    samples,
    *,
    sharing=True,
    max_tokens=10_000,
    aggregation="token_mean",
    cost=FREE_ATTENTION,
    **settings,
):
    return pack(
        samples,
        aggregation=aggregation,
        max_tokens=max_tokens,
        prefix_sharing=sharing,
        cost=cost,
        **settings,
    )


def test_a_shared_row_holds_every_beginning_once_and_positions_are_depths():
    samples = [
        sample([1, 2, 3], [4, 5, 6]),
        sample([1, 2, 3], [7, 8]),
        sample([1, 2, 3], [4, 9]),
        sample([1, 2, 3], [4, 5, 6]),
        sample([1, 6], [9, 9]),
    ]
    (part,) = packed(samples).micro_batches
    # Last tokens are targets only: the inputs are 123 45, 123 7, 123 4, 123 45 and 16 9.
    assert part.sample_index.tolist() == [2, 2, 0, 0, 0, 3, 3, 3, 1, 1, 4, 4]
    assert part.tokens.tolist() == [[1, 2, 3, 4, 5, 7, 6, 9]]
    assert part.positions.tolist() == [[0, 1, 2, 3, 4, 3, 1, 2]]
    assert part.ends.tolist() == [[8, 6, 6, 5, 5, 6, 8, 8]]
    scored = list(zip(part.columns.tolist(), part.targets.tolist(), strict=True))
    assert sorted(scored) == [(2, 4), (2, 7), (3, 5), (3, 9), (4, 6), (5, 8), (6, 9), (7, 9)]
    by_token = [scored[u] for u in part.predictions.tolist()]
    assert by_token[:2] == [(2, 4), (3, 9)]  # sample 2
    assert by_token[2:5] == by_token[5:8] == [(2, 4), (3, 5), (4, 6)]  # samples 0 and 3
    assert by_token[8:10] == [(2, 7), (5, 8)]  # sample 1
    assert by_token[10:] == [(6, 9), (7, 9)]  # sample 4


def test_a_column_sees_its_own_branch_only():
    samples = [sample([1, 2], [3, 4, 9]), sample([1, 2], [5, 6, 7]), sample([1, 2], [3, 6, 9])]
    (part,) = packed(samples).micro_batches
    assert part.tokens.tolist() == [[1, 2, 3, 4, 6, 5, 6]]
    seen = part.attention_mask()[0, 0].int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1, 1],
    ]


def test_padding_is_seen_by_nothing_and_sees_something():
    samples = [
        *(sample([1, 2], [n, 4, 5], group=0) for n in range(2)),
        *(sample([7], [n, 4], group=1) for n in range(2)),
    ]
    (part,) = packed(samples).micro_batches
    mask, is_padding = part.attention_mask()[:, 0], torch.zeros(2, 6, dtype=torch.bool)
    is_padding[1, 3:] = True
    assert part.tokens.tolist()[1] == [7, 0, 1, 0, 0, 0]
    assert mask.any(dim=2).all()
    assert not (mask & is_padding[:, None, :] & ~is_padding[:, :, None]).any()


def test_plain_rows_have_neither_mask_nor_positions():
    batch = packed(ragged_samples(), sharing=False)
    for part in batch.micro_batches:
        assert part.positions is None
        assert part.attention_mask() is None


def test_what_different_prompts_and_groups_have_in_common_is_shared_too():
    prompt = list(range(10))
    samples = [
        sample(prompt, [1, 2], group=0),
        sample([*prompt[:-1], 30], [1, 2], group=0),
        sample(prompt, [1, 2], group=1),
    ]
    batch = packed(samples)
    assert batch.num_input_tokens == 9 + 2 + 2
    assert batch.num_unshared_tokens == 33


def test_every_field_follows_its_token():
    samples = ragged_samples(has_holes=True)
    for sharing in (True, False):
        batch = packed(samples, sharing=sharing, max_tokens=40)
        seen = 0
        for part in batch.micro_batches:
            chosen = [part.per_token(v).tolist() for v in (part.rows, part.columns, part.targets)]
            for t, (row, column, target) in enumerate(zip(*chosen, strict=True)):
                one = samples[int(part.sample_index[t])]
                rank = int((part.sample_index[:t] == part.sample_index[t]).sum())
                place = [i for i, trained in enumerate(one.loss_mask) if trained][rank]
                assert target == one.tokens[place]
                assert int(part.tokens[row, column]) == one.tokens[place - 1]
                assert float(part.advantages[t]) == pytest.approx(one.advantages[place])
                assert float(part.rollout_logprobs[t]) == pytest.approx(one.logprobs[place])
                assert int(part.versions[t]) == one.versions[place]
                if part.positions is not None:
                    assert int(part.positions[row, column]) == place - 1
                else:
                    assert column == place - 1
                seen += 1
        assert seen == batch.num_trained_tokens == sum(sum(s.loss_mask) for s in samples)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    max_tokens=st.sampled_from([1, 20, 70, 10_000]),
    aggregation=st.sampled_from(["token_mean", "sequence_mean"]),
    sharing=st.booleans(),
)
def test_weights_sum_to_one_over_the_batch_and_samples_stay_whole(
    seed, max_tokens, aggregation, sharing
):
    samples = ragged_samples(seed=seed, has_holes=True)
    batch = packed(samples, sharing=sharing, max_tokens=max_tokens, aggregation=aggregation)
    total = sum(float(part.weights.sum()) for part in batch.micro_batches)
    assert total == pytest.approx(1.0 if batch.micro_batches else 0.0, abs=1e-5)
    homes = [set(part.sample_index.tolist()) for part in batch.micro_batches]
    assert sum(map(len, homes)) == len(set().union(*homes)) if homes else True
    for part in batch.micro_batches:
        assert part.num_padded_tokens <= max_tokens or len(part.tokens) == 1


def test_samples_without_a_trained_token_are_counted_and_contribute_nothing():
    samples = [sample([1, 2], [3]), sample([1, 2], [4, 5], mask=[False, False])]
    batch = packed(samples)
    assert (batch.num_samples, batch.num_untrained_samples) == (2, 1)
    assert [part.sample_index.tolist() for part in batch.micro_batches] == [[0]]
    empty = packed(samples[1:])
    assert empty.micro_batches == ()
    assert empty.padding_share is None
    assert empty.shared_share is None


def test_samples_without_advantage_get_micro_batches_without_gradient():
    samples = [sample([1, 2, 3], [4, 5]), sample([1, 2, 4], [6], advantage=0.0, group=1)]
    assert all(part.needs_gradient for part in packed(samples).micro_batches)
    batch = packed(samples, skips_zero_advantage=True)
    (part,) = batch.micro_batches
    assert part.needs_gradient  # so few without advantage aren't worth a pass
    dear = dataclasses.replace(FREE_ATTENTION, pass_tokens=0)
    batch = packed(samples, skips_zero_advantage=True, cost=dear)
    found = {part.sample_index[0].item(): part.needs_gradient for part in batch.micro_batches}
    assert found == {0: True, 1: False}
    assert batch.num_trained_tokens == 3
    assert batch.num_effective_tokens == 2


def test_token_counts_and_shares():
    samples = [sample([1, 2, 3, 4], [5, 6]), sample([1, 2, 3, 4], [7, 8, 9])]
    batch = packed(samples)
    assert batch.num_unshared_tokens == 5 + 6
    assert batch.num_input_tokens == 4 + 1 + 2
    assert batch.padding_share == 0.0
    assert batch.shared_share == pytest.approx(4 / 11)


@pytest.mark.parametrize("field", ["loss_mask", "logprobs", "versions", "advantages"])
def test_a_field_of_another_length_is_refused(field):
    good = sample([1, 2], [3])
    bad = dataclasses.replace(good, **{field: getattr(good, field)[:-1]})
    with pytest.raises(DataError, match=f"sample 1 of group 0 has 3 tokens and 2 {field}"):
        packed([good, bad])


def test_a_trained_first_token_is_refused():
    bad = dataclasses.replace(sample([1, 2], [3]), loss_mask=(True, False, True))
    with pytest.raises(DataError, match="first token"):
        packed([bad])


def test_a_prompt_that_is_trained_is_right_in_a_shared_row():
    one = dataclasses.replace(sample([1, 2, 3], [4, 5]), loss_mask=(False, True, False, True, True))
    two = sample([1, 2, 3], [6])
    (part,) = packed([one, two]).micro_batches
    assert part.per_token(part.targets).tolist() == [6, 2, 4, 5]
    assert part.per_token(part.columns).tolist() == [2, 0, 2, 3]


def test_moving_keeps_every_field():
    (part,) = packed([sample([1, 2], [3, 4]), sample([1, 2], [5])]).micro_batches
    moved = part.to(torch.device("meta"))
    for field in dataclasses.fields(part):
        value = getattr(moved, field.name)
        if isinstance(value, torch.Tensor):
            assert value.device.type == "meta"
            assert value.shape == getattr(part, field.name).shape
    assert moved.needs_gradient is part.needs_gradient
