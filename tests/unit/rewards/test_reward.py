import pytest

from parity.errors import RewardError
from parity.rewards.reward import checked, described, scored
from parity.types import GraderFailure, Scored, Unscored


@pytest.mark.parametrize(
    "result", [Scored(0.5, {"a": 1.0}), Unscored("why"), GraderFailure("why", retryable=True)]
)
def test_result_that_keeps_the_contract_stays_as_it_is(result):
    assert checked(result) == result


@pytest.mark.parametrize("result", [None, 1.0, "Scored", [Scored(1.0)], Scored(float("nan"))])
def test_result_that_breaks_the_contract_is_a_failure_that_is_not_retryable(result):
    failure = checked(result)
    assert isinstance(failure, GraderFailure)
    assert not failure.retryable


def test_whole_numbers_and_truth_values_become_floats():
    result = scored(True, {"a": 2})
    assert (type(result.value), type(result.parts["a"])) == (float, float)


def test_parts_that_are_no_mapping_are_refused():
    with pytest.raises(RewardError, match="must be a mapping"):
        scored(1.0, [("a", 1.0)])


def test_description_is_short_and_ascii():
    assert described("\ud800" * 1000).isascii()
    assert len(described("x" * 10**6)) < 80
