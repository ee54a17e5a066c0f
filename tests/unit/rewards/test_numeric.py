import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.rewards.answers import answer

from parity.rewards.config import NumericRewardConfig
from parity.rewards.numeric import NumericReward
from parity.types import Scored, Unscored

EXACT = {"relative_tolerance": 0.0, "absolute_tolerance": 0.0}


@pytest.mark.parametrize(
    ("response", "expected", "options", "value"),
    [
        ("The answer is 42.", "42", {}, 1.0),
        ("42 apples, then 7", "42", {}, 0.0),
        ("7 apples, then 42", "42", {}, 1.0),
        ("$1,234.50", "1234.5", {}, 1.0),
        ("1234.5", " 1,234.50 ", {}, 1.0),
        ("x = -5", "-5", {}, 1.0),
        ("x = \u22125", "-5", {}, 1.0),
        ("10-5", "5", {}, 1.0),
        ("(3)-4", "-4", {}, 0.0),
        ("+7", "7", {}, 1.0),
        (".5", "0.5", {}, 1.0),
        ("1e3", "1000", {}, 1.0),
        ("2.5E-3", "0.0025", {}, 1.0),
        ("1,2,3", "3", {}, 1.0),
        ("0", "0", {}, 1.0),
        ("-0", "0", {}, 1.0),
        ("42.00004", "42", {}, 1.0),
        ("42.0001", "42", {}, 0.0),
        ("42.0001", "42", {"absolute_tolerance": 0.001}, 1.0),
        ("43", "42", {"relative_tolerance": 0.05}, 1.0),
        ("0.30000000000000004", "0.3", EXACT, 0.0),
        ("0.30", "0.3", EXACT, 1.0),
        ("12345678901234567891", "12345678901234567890", EXACT, 0.0),
        ("12345678901234567891", "12345678901234567890", {}, 1.0),
        ("1e999999", "1", {}, 0.0),
        ("1e999999", "1e999999", {}, 1.0),
        ("1e-999999", "0", {}, 1.0),
        ("1e99999999999999999999999", "1", {}, 0.0),
        ("nan", "1", {}, 0.0),
        ("inf", "1", {}, 0.0),
        ("\u0664\u0662", "42", {}, 0.0),
        ("", "42", {}, 0.0),
        ("no number", "42", {}, 0.0),
    ],
)
def test_last_number_is_compared_with_the_answer(response, expected, options, value):
    reward = NumericReward(NumericRewardConfig(**options))
    assert reward.score(answer(response, expected)) == Scored(value)


@pytest.mark.parametrize("expected", ["", "forty-two", "1/2", "42 apples", "nan", "inf", "\ud800"])
def test_expected_answer_that_is_no_number_leaves_the_task_unscored(expected):
    result = NumericReward(NumericRewardConfig()).score(answer("42", expected))
    assert isinstance(result, Unscored)
    assert "not a number" in result.reason


def test_task_without_answer_is_unscored():
    result = NumericReward(NumericRewardConfig()).score(answer("42", None))
    assert result == Unscored("task has no answer")


@settings(max_examples=50, deadline=None)
@given(st.integers(), st.text(alphabet="abc .,;:!?\n", max_size=20))
def test_a_whole_number_is_found_behind_any_prose(number, prose):
    reward = NumericReward(NumericRewardConfig(**EXACT))
    assert reward.score(answer(f"{prose} {number:,}{prose}", str(number))) == Scored(1.0)
    assert reward.score(answer(f"{prose} {number + 1}{prose}", str(number))) == Scored(0.0)
