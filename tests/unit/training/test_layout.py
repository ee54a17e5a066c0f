import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.training.tiny import FREE_ATTENTION, tiny_model

from parity.training.layout import ModelCost, Row, split_kinds, split_rows, tree_rows

DEAR_ATTENTION = ModelCost(token_flops=1.0, pair_flops=1.0)


def members_of(rows):
    return sorted(member for row in rows for member in row.members)


def rows_of(sequences, *, cost, max_tokens=10_000):
    """Rows of token sequences, given in any order."""
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    commons = [0] + [common(sequences[a], sequences[b]) for a, b in itertools.pairwise(order)]
    lengths = [len(sequences[index]) for index in order]
    return tree_rows(order, np.array(lengths), np.array(commons), cost=cost, max_tokens=max_tokens)


def common(first, second):
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def num_nodes(sequences):
    """Distinct beginnings: the columns that a tree of these sequences needs."""
    return len({tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)})


def cost_of(rows, cost):
    """What rows cost by their lengths."""
    return sum(
        float(cost.masked(np.array([row.length]))[0]) if row.is_shared else cost.plain(row.length)
        for row in rows
    )


def test_samples_that_begin_alike_share_one_row_with_each_beginning_once():
    prompt = [1] * 20
    rows = rows_of([[*prompt, 7, 8], [*prompt, 7], [*prompt, 7, 9, 9]], cost=FREE_ATTENTION)
    assert rows == [Row((1, 0, 2), 20 + 1 + 1 + 2, (0, 21, 21))]


def test_samples_without_a_common_beginning_stay_alone():
    rows = rows_of([[1, 2, 3], [2, 2, 3], [3]], cost=FREE_ATTENTION)
    assert [row.members for row in rows] == [(0,), (1,), (2,)]


def test_samples_stay_alone_where_the_square_of_the_row_costs_more():
    one, two = [1, 1, *[2] * 50], [1, 1, *[3] * 50]
    rows = rows_of([one, two], cost=DEAR_ATTENTION)
    assert rows == [Row((0,), 52), Row((1,), 52)]


def test_equal_samples_cost_nothing_more():
    rows = rows_of([[1, 2, 3]] * 5, cost=DEAR_ATTENTION)
    assert rows == [Row((0, 1, 2, 3, 4), 3, (0, 3, 3, 3, 3))]


def test_a_group_is_cut_into_several_rows_where_that_is_cheapest():
    cost = ModelCost(token_flops=100.0, pair_flops=1.0)
    rows = rows_of([[*[0] * 40, n, *[9] * 19] for n in range(8)], cost=cost)
    assert 1 < len(rows) < 8
    assert members_of(rows) == list(range(8))


def test_shared_rows_respect_the_token_bound():
    sequences = [[*[0] * 20, n, *[9] * 9] for n in range(6)]
    rows = rows_of(sequences, cost=FREE_ATTENTION, max_tokens=45)
    assert members_of(rows) == list(range(6))
    assert all(row.length <= 45 for row in rows)
    assert any(row.is_shared for row in rows)


sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=7
)


@settings(max_examples=60, deadline=None)
@given(
    sequences=sequences,
    token_flops=st.sampled_from([1.0, 10.0, 1000.0]),
    max_tokens=st.sampled_from([1, 8, 16, 1000]),
)
def test_no_other_cut_of_the_order_is_cheaper(sequences, token_flops, max_tokens):
    cost = ModelCost(token_flops=token_flops, pair_flops=1.0)
    rows = rows_of(sequences, cost=cost, max_tokens=max_tokens)
    assert members_of(rows) == list(range(len(sequences)))
    for row in rows:
        assert row.length == num_nodes([sequences[member] for member in row.members])
        assert row.length <= max_tokens or not row.is_shared
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    found = cost_of(rows, cost)
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        places = [0, *(place for place, cut in enumerate(cuts, start=1) if cut), len(order)]
        runs = [order[a:b] for a, b in itertools.pairwise(places)]
        other = [Row(tuple(run), num_nodes([sequences[m] for m in run])) for run in runs]
        if all(row.length <= max_tokens or not row.is_shared for row in other):
            assert found <= cost_of(other, cost) * (1 + 1e-9)


def test_few_rows_without_a_branch_go_with_those_that_need_a_mask():
    shared, few, many = Row((0, 1), 50, (0, 9)), Row((2,), 60), Row((3,), 100)
    cost = ModelCost(token_flops=1.0, pair_flops=0.0, pass_tokens=128)
    assert split_kinds([shared, few], cost) == [[shared, few]]
    assert split_kinds([shared, few, many], cost) == [[few, many], [shared]]
    assert split_kinds([few], cost) == [[few]]
    windowed = dataclasses.replace(cost, max_shared_tokens=70)
    assert split_kinds([shared, few], windowed) == [[few], [shared]]


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
