import pytest
from unit.rewards.answers import answer

from parity.rewards import math as math_reward
from parity.rewards.config import MathRewardConfig
from parity.rewards.math import MathReward
from parity.types import Scored, Unscored


@pytest.mark.parametrize(
    ("response", "expected", "value"),
    [
        ("The answer is $\\frac{1}{2}$.", "1/2", 1.0),
        ("\\boxed{0.5}", "\\frac{1}{2}", 1.0),
        ("so x = 42", "42", 1.0),
        ("so x = 41", "42", 0.0),
        ("$x=5$", "$x=5$", 1.0),
        ("\\boxed{5}", "x=5", 1.0),
        ("$1+x^2$", "x^2+1", 1.0),
        ("$(x+1)^2$", "x^2+2x+1", 1.0),
        ("\\boxed{(1,2)}", "(1,2)", 1.0),
        ("\\boxed{(2,1)}", "(1,2)", 0.0),
        ("\\boxed{\\{2,1\\}}", "\\{1,2\\}", 1.0),
        ("\\boxed{\\text{east}}", "\\text{east}", 1.0),
        ("$50\\%$", "50%", 1.0),
        ("1,234", "$1234$", 1.0),
        ("$\\frac{1}{0}$", "42", 0.0),
        ("", "42", 0.0),
        ("no mathematics", "42", 0.0),
        ("9" * 5000, "42", 0.0),
    ],
)
def test_expressions_are_compared(response, expected, value):
    assert MathReward(MathRewardConfig()).score(answer(response, expected)) == Scored(value)


@pytest.mark.parametrize("expected", ["", "   ", "$$", "\\frac{1}{0}", "$\\frac{0}{0}$"])
def test_expected_answer_without_a_value_leaves_the_task_unscored(expected):
    assert isinstance(MathReward(MathRewardConfig()).score(answer("42", expected)), Unscored)


def test_task_without_answer_is_unscored():
    result = MathReward(MathRewardConfig()).score(answer("42", None))
    assert result == Unscored("task has no answer")


def test_comparison_that_breaks_is_never_a_wrong_answer(monkeypatch):
    def broken(*_args: object, **_options: object) -> bool:
        raise AttributeError("sympy broke")

    monkeypatch.setattr(math_reward, "verify", broken)
    with pytest.raises(AttributeError):
        MathReward(MathRewardConfig()).score(answer("41", "42"))
