import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.training.tiny import FREE_ATTENTION, tiny_model

from parity.training.layout import ModelCost, Row, share_rows, split_rows

DEAR_ATTENTION = ModelCost(token_flops=1.0, pair_flops=1.0)


def members_of(rows):
    return sorted(member for row in rows for member in row.members)


def test_siblings_with_a_long_prompt_share_one_row():
    rows = share_rows(
        [4, 5, 6], [20, 22, 21], num_prompt_tokens=20, cost=FREE_ATTENTION, max_tokens=100
    )
    assert rows == [Row((4, 5, 6), 23)]


def test_siblings_stay_alone_where_the_square_of_the_row_costs_more():
    rows = share_rows([0, 1], [52, 52], num_prompt_tokens=2, cost=DEAR_ATTENTION, max_tokens=1000)
    assert rows == [Row((0,), 52), Row((1,), 52)]


def test_a_group_is_cut_into_several_rows_where_that_is_cheapest():
    cost = ModelCost(token_flops=100.0, pair_flops=1.0)
    rows = share_rows(range(8), [60] * 8, num_prompt_tokens=40, cost=cost, max_tokens=10_000)
    assert 1 < len(rows) < 8
    assert members_of(rows) == list(range(8))


def test_shared_rows_respect_the_token_bound():
    rows = share_rows(range(6), [30] * 6, num_prompt_tokens=20, cost=FREE_ATTENTION, max_tokens=45)
    assert members_of(rows) == list(range(6))
    assert all(row.length <= 45 for row in rows)
    assert any(row.is_shared for row in rows)


def test_samples_longer_than_an_attention_window_stay_alone():
    cost = ModelCost(token_flops=1.0, pair_flops=0.0, max_shared_tokens=25)
    kwargs = {"num_prompt_tokens": 20, "cost": cost, "max_tokens": 100}
    assert len(share_rows([0, 1], [26, 21], **kwargs)) == 2
    assert len(share_rows([0, 1], [25, 21], **kwargs)) == 1


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=0, max_size=40),
    max_tokens=st.integers(1, 3000),
)
def test_every_row_is_in_one_micro_batch_within_the_bound(lengths, max_tokens):
    rows = [Row((i,), length) for i, length in enumerate(lengths)]
    parts = split_rows(rows, max_tokens=max_tokens, pass_tokens=64)
    assert members_of([row for part in parts for row in part]) == list(range(len(rows)))
    for part in parts:
        padded = len(part) * max(row.length for row in part)
        assert padded <= max_tokens or len(part) == 1


def test_very_different_lengths_are_not_padded_to_one_another():
    rows = [Row((i,), 20) for i in range(100)] + [Row((100,), 2000)]
    parts = split_rows(rows, max_tokens=10**6, pass_tokens=64)
    assert sorted(len(part) for part in parts) == [1, 100]


def test_a_little_padding_is_better_than_another_pass():
    rows = [Row((0,), 50), Row((1,), 60)]
    assert len(split_rows(rows, max_tokens=10**6, pass_tokens=11)) == 1
    assert len(split_rows(rows, max_tokens=10**6, pass_tokens=9)) == 2


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_the_cost_of_a_model_is_read_from_its_shapes(family):
    model = tiny_model(family)
    cost = ModelCost.of(model)
    head = model.get_output_embeddings().weight
    tables = {id(p): p.numel() for p in (model.get_input_embeddings().weight, head)}
    rest = sum(p.numel() for p in model.parameters()) - sum(tables.values())
    assert cost.token_flops == 2.0 * rest
    assert cost.pair_flops == 4.0 * 2 * 4 * 8
    assert cost.max_shared_tokens is None


def test_a_sliding_window_bounds_shared_samples():
    model = tiny_model("gemma2", sliding_window=17)
    assert ModelCost.of(model).max_shared_tokens == 17
