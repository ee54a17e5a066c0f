from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.ci.partition.shards import lower_bound, makespan, partition

weights = st.dictionaries(
    st.text(min_size=1, max_size=4), st.floats(0.001, 5000, allow_nan=False), max_size=60
)
counts = st.integers(1, 8)


def span_s(items, shards):
    return max((sum(items[key] for key in shard) for shard in shards), default=0.0)


@settings(deadline=None)  # a small case is searched to its end
@given(weights, counts)
def test_shards_are_disjoint_and_complete(items, count):
    shards = partition(items, count)

    assert len(shards) == count
    assert sorted(key for shard in shards for key in shard) == sorted(items)


@settings(deadline=None)  # a small case is searched to its end
@given(weights, counts, st.randoms())
def test_the_order_of_the_input_changes_nothing(items, count, random):
    keys = list(items)
    random.shuffle(keys)

    assert partition({key: items[key] for key in keys}, count) == partition(items, count)


@settings(max_examples=100, deadline=None)
@given(weights, counts)
def test_the_longest_shard_is_within_four_thirds_of_the_lower_bound(items, count):
    ticks = {key: max(1, round(each * 1000)) for key, each in items.items()}

    longest = span_s(ticks, partition(items, count))

    assert longest <= 4 / 3 * lower_bound(list(ticks.values()), count)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 4))
def test_the_lower_bound_is_one(sizes, count):
    places = product(range(count), repeat=len(sizes) - 1)
    best = min(makespan(sizes, (0, *rest), count) for rest in places)

    assert lower_bound(sizes, count) <= best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 4))
def test_small_cases_are_the_best_possible(sizes, count):
    items = {f"t{at}": float(size) for at, size in enumerate(sizes)}
    places = product(range(count), repeat=len(sizes) - 1)  # the first item in the first shard
    best = min(makespan(sizes, (0, *rest), count) for rest in places)

    assert span_s(items, partition(items, count)) == best


@settings(deadline=None)  # a small case is searched to its end
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.integers(2, 6), st.randoms())
def test_many_tests_stay_within_four_thirds_of_the_best_possible(parts, count, random):
    """The optimum is known by construction: every shard is cut to the same length."""
    length = sum(parts)
    items = {}
    for shard in range(count):
        order = parts[:]
        random.shuffle(order)
        items |= {f"{shard}-{at}": float(size) for at, size in enumerate(order)}

    assert span_s(items, partition(items, count)) <= 4 / 3 * length


def test_a_case_where_longest_first_alone_is_not_the_best():
    items = {"a": 3.0, "b": 3.0, "c": 2.0, "d": 2.0, "e": 2.0}

    assert span_s(items, partition(items, 2)) == 6.0


def test_a_shard_runs_its_longest_test_first():
    (shard,) = partition({"a": 1.0, "b": 9.0, "c": 1.0}, 1)

    assert shard == ["b", "a", "c"]


def test_more_shards_than_tests_leave_empty_ones_at_the_end():
    assert partition({"a": 1.0}, 3) == [["a"], [], []]


@pytest.mark.parametrize("count", [1, 4])
def test_no_tests_are_spread_too(count):
    assert partition({}, count) == [[]] * count
