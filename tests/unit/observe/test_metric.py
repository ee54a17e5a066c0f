import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import ConfigError
from parity.observe.metric import Accumulator, Metric, reduce


def metric(reduction: str) -> Metric:
    return Metric("area/thing", "", reduction, "a thing")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("mean", 2.0), ("share", 2.0), ("sum", 6.0), ("max", 3.0), ("min", 1.0), ("last", 2.0)],
)
def test_each_reduction(reduction: str, expected: float) -> None:
    assert reduce([3.0, 1.0, 2.0], metric(reduction)) == expected


@pytest.mark.parametrize("reduction", ["mean", "share", "sum", "max", "min", "last"])
def test_nothing_known_is_no_data_and_not_zero(reduction: str) -> None:
    assert reduce([], metric(reduction)) is None
    assert reduce([None, math.nan], metric(reduction)) is None


def test_unknown_values_are_left_out_and_counted() -> None:
    accumulator = Accumulator(metric("mean"))
    for value in (1.0, None, math.nan, 3.0):
        accumulator.add(value)
    assert accumulator.value == 2.0
    assert (accumulator.num_known, accumulator.num_unknown) == (2, 2)


def test_padding_of_weight_zero_is_left_out() -> None:
    accumulator = Accumulator(metric("mean"))
    accumulator.add(99.0, weight=0.0)
    assert accumulator.value is None
    accumulator.add(2.0, weight=3.0)
    accumulator.add(99.0, weight=0.0)
    accumulator.add(6.0, weight=1.0)
    assert accumulator.value == 3.0


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_senseless_weight_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Accumulator(metric("mean")).add(1.0, weight=weight)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.none() | st.integers(-9, 9).map(float), max_size=8),
    st.integers(0, 8),
    st.sampled_from(["mean", "share", "sum", "max", "min", "last"]),
)
def test_merging_parts_equals_adding_all(
    values: list[float | None], cut: int, reduction: str
) -> None:
    first, second = Accumulator(metric(reduction)), Accumulator(metric(reduction))
    for value in values[:cut]:
        first.add(value)
    for value in values[cut:]:
        second.add(value)
    first.merge(second)
    whole = reduce(values, metric(reduction))
    assert first.value == (whole if whole is None else pytest.approx(whole))


def test_metrics_of_different_names_do_not_merge() -> None:
    with pytest.raises(ValueError, match="merged"):
        Accumulator(metric("mean")).merge(Accumulator(metric("sum")))


@pytest.mark.parametrize("name", ["loss", "Train/loss", "train/", "train/a/b", "a/b*c", "a/b "])
def test_a_name_that_is_not_area_and_unit_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="area/what_unit"):
        Metric(name, "", "mean", "")


def test_a_family_covers_its_members_only() -> None:
    family = Metric("eval/pass_at_*", "", "mean", "")
    assert family.covers("eval/pass_at_8")
    assert not family.covers("eval/pass_at_")
    assert not family.covers("eval/accuracy")
