import pytest
from unit.rewards.answers import answer

from parity.errors import ConfigError
from parity.rewards.config import ExactRewardConfig
from parity.rewards.exact import ExactReward
from parity.types import Scored, Unscored


@pytest.mark.parametrize(
    ("response", "expected", "options", "value"),
    [
        ("42", "42", {}, 1.0),
        (" 42\n", "42", {}, 1.0),
        (" 42\n", "42", {"strip": False}, 0.0),
        ("42\n", "42\n", {"strip": False}, 1.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "pARIS", {"ignore_case": True}, 1.0),
        ("STRASSE", "stra\u00dfe", {"ignore_case": True}, 1.0),
        ("42", "421", {}, 0.0),
        ("", "", {}, 1.0),
        ("", "42", {}, 0.0),
        ("4 2", "42", {}, 0.0),
        ("\ud800", "\ud800", {}, 1.0),
        ("<a>1</a> or <a> 2 </a>", "2", {"pattern": r"<a>(.*?)</a>"}, 1.0),
        ("<a>2</a> or <a>1</a>", "2", {"pattern": r"<a>(.*?)</a>"}, 0.0),
        ("2", "2", {"pattern": r"<a>(.*?)</a>"}, 0.0),
        ("a=1 b", "1", {"pattern": r"a=(\d)|b"}, 1.0),
        ("b", "1", {"pattern": r"a=(\d)|b"}, 0.0),
        ("#### 7", "7", {"pattern": r"(?m)^####(.*)$"}, 1.0),
    ],
)
def test_response_is_compared_with_the_answer(response, expected, options, value):
    reward = ExactReward(ExactRewardConfig(**options))
    assert reward.score(answer(response, expected)) == Scored(value)


def test_task_without_answer_is_unscored():
    reward = ExactReward(ExactRewardConfig())
    assert reward.score(answer("42", None)) == Unscored("task has no answer")


@pytest.mark.parametrize("pattern", ["(", "answer: .*"])
def test_pattern_that_extracts_nothing_is_refused(pattern):
    with pytest.raises(ConfigError, match="pattern is"):
        ExactRewardConfig(pattern=pattern)
