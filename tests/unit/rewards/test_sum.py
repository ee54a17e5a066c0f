import pytest
from unit.rewards.answers import answer

from parity.errors import ConfigError
from parity.rewards.config import SumRewardConfig
from parity.rewards.sum import SumReward
from parity.types import GraderFailure, Scored, Unscored

EXACT = {"name": "exact", "weight": 1.0, "label": "right"}
FORM = {"name": "format", "pattern": "[0-9]*", "weight": 0.25, "label": "form"}
TYPED = {"name": "python", "function": "unit.rewards.answers:typed"}


def total(*parts: dict) -> SumReward:
    return SumReward(SumRewardConfig(parts=parts))


@pytest.mark.parametrize(
    ("response", "value", "parts"),
    [
        ("42", 1.25, {"right": 1.0, "form": 1.0}),
        ("41", 0.25, {"right": 0.0, "form": 1.0}),
        ("no", 0.0, {"right": 0.0, "form": 0.0}),
    ],
)
def test_parts_are_weighed_and_reported_unweighted(response, value, parts):
    assert total(EXACT, FORM).score(answer(response)) == Scored(value, parts)


def test_weight_is_one_and_label_the_name_unless_given():
    assert total({"name": "exact"}).score(answer("42")) == Scored(1.0, {"exact": 1.0})


def test_weight_may_be_negative():
    assert total({**EXACT, "weight": -2}).score(answer("42")) == Scored(-2.0, {"right": 1.0})


def test_parts_of_a_part_are_reported_under_its_label():
    inner = {"name": "sum", "parts": [EXACT, FORM], "weight": 2.0, "label": "inner"}
    result = total(inner, {**FORM, "label": "outer"}).score(answer("42"))
    parts = {"inner": 1.25, "inner/right": 1.0, "inner/form": 1.0, "outer": 1.0}
    assert result == Scored(2.75, parts)


def test_sum_is_unscored_where_a_part_is():
    result = total(FORM, EXACT).score(answer("42", None))
    assert result == Unscored("right: task has no answer")


def test_sum_fails_where_a_part_fails_and_says_which():
    result = total(FORM, TYPED).score(answer("failure"))
    assert result == GraderFailure("python: later", retryable=True)


def test_unscored_wins_over_failed_because_another_try_would_not_help():
    result = total(TYPED, EXACT).score(answer("failure", None))
    assert result == Unscored("right: task has no answer")


def test_sum_that_overflows_is_a_failure():
    result = total({**EXACT, "weight": 1e308}, {**FORM, "weight": 1e308}).score(answer("42"))
    assert isinstance(result, GraderFailure)
    assert not result.retryable


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), "parts is empty"),
        (({"name": "exact", "weight": "1"},), "parts.0.weight is '1'"),
        (({"name": "exact", "weight": float("nan")},), "parts.0.weight is nan"),
        (({"name": "exact", "weight": True},), "parts.0.weight is True"),
        (({"name": "exact"}, {"name": "exact"}), "parts.1.label is 'exact'"),
        (({"name": "exact", "label": ""},), "parts.0.label is ''"),
        (({"weight": 1.0},), "parts.0.name is None"),
        (({"name": "exact", "stirp": True},), "parts.0: .*Did you mean 'strip'"),
        (({"name": "exat"},), "parts.0: .*Did you mean 'exact'"),
        (({"name": "sum", "parts": [{"name": "format", "pattern": 3}]},), "parts.0: parts.0: pat"),
    ],
)
def test_parts_that_make_no_reward_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        total(*parts)
