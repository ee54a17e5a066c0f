import pytest
from unit.rewards.answers import answer

from parity.errors import ConfigError
from parity.rewards.config import FormatRewardConfig
from parity.rewards.format import FormatReward
from parity.types import Scored


@pytest.mark.parametrize(
    ("response", "options", "value"),
    [
        ("so\nit is \\boxed{42}.\n", {}, 1.0),
        ("so it is \\boxed{}", {}, 0.0),
        ("so it is 42", {}, 0.0),
        ("", {}, 0.0),
        ("<think>a</think>b", {"pattern": r"<think>.*</think>.+"}, 1.0),
        ("x<think>a</think>b", {"pattern": r"<think>.*</think>.+"}, 0.0),
        ("<think>a\n</think>b", {"pattern": r"<think>.*</think>.+"}, 0.0),
        ("", {"pattern": ""}, 1.0),
    ],
)
def test_whole_response_must_match(response, options, value):
    reward = FormatReward(FormatRewardConfig(**options))
    assert reward.score(answer(response, None)) == Scored(value)


def test_pattern_that_is_no_regular_expression_is_refused():
    with pytest.raises(ConfigError, match="isn't a regular expression"):
        FormatRewardConfig(pattern="(")
