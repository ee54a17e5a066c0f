"""What every registered reward promises, plugins included where a section for them is known."""

import math
import threading

import pytest
import reasoning_gym
from unit.rewards.answers import answer

from parity.rewards import REWARDS
from parity.rewards.config import RewardConfig
from parity.rewards.reward import Reward, checked
from parity.rewards.section import build, parse
from parity.types import Answer, GraderFailure, Json, Scored, Unscored

# A usable section of every reward that has no usable default.
SECTIONS: dict[str, dict[str, Json]] = {
    "python": {"function": "unit.rewards.answers:length"},
    "sum": {"parts": [{"name": "exact"}, {"name": "format", "weight": 0.5}]},
}
NEED_NO_ANSWER = {"format", "python", "reasoning_gym"}  # reasoning_gym needs its record instead
HOSTILE = {
    "empty": "",
    "a megabyte": "lorem " * 175_000,
    "a megabyte of one letter": "a" * 1_000_000,
    "a long number": "9" * 20_000,
    "lone surrogates": "\ud800 \udfff",
    "NUL": "\x0042\x00",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 42",
    "division by zero": "$\\frac{1}{0}$",
    "open braces": "\\boxed{" * 200,
    "control characters": "\r\n\t\x1b[31m\u2028\u202e",
    "code": "__import__('os')._exit(1)",
    "infinity": "inf nan 1e999999999",
}


def columns() -> dict[str, Json]:
    settings = {"min_word_len": 4}
    entry = reasoning_gym.create_dataset("spell_backward", seed=1, size=2, **settings)[0]
    return {"dataset": "spell_backward", "settings": settings, "entry": entry}


RECORD = columns()


@pytest.fixture(params=sorted(REWARDS._table))
def name(request) -> str:
    return request.param


@pytest.fixture
def reward(name) -> Reward:
    return build({"name": name, **SECTIONS.get(name, {})})


def assert_kept(result: object) -> None:
    """The contract of a result."""
    assert isinstance(result, Scored | Unscored | GraderFailure)
    assert checked(result) == result
    if isinstance(result, Scored):
        assert type(result.value) is float and math.isfinite(result.value)
        assert all(type(part) is float and math.isfinite(part) for part in result.parts.values())


def test_section_becomes_the_config_of_that_name(name):
    config = parse({"name": name, **SECTIONS.get(name, {})})
    assert isinstance(config, RewardConfig)
    assert config.name == name


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("expected", ["42", "$\\frac{1}{2}$"])
def test_hostile_response_gives_a_result(reward, kind, expected):
    assert_kept(reward.score(answer(HOSTILE[kind], expected, columns=RECORD)))


@pytest.mark.parametrize("kind", sorted(set(HOSTILE) - {"a megabyte", "a megabyte of one letter"}))
def test_hostile_expected_answer_gives_a_result(reward, kind):
    assert_kept(reward.score(answer("42", HOSTILE[kind], columns=RECORD)))


def test_result_is_the_same_outside_the_main_thread(reward):
    given = [answer(response, columns=RECORD) for response in ("42", "41", "\\boxed{42}", "")]
    here = [reward.score(one) for one in given]
    there: list = []

    def work() -> None:
        there.extend(reward.score(one) for one in given)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert there == here


def test_right_answer_beats_a_wrong_one(name, reward):
    if name == "python":
        pytest.skip("what is right is the function's business")
    right = RECORD["entry"]["answer"] if name == "reasoning_gym" else "42"
    right = "\\boxed{42}" if name == "format" else right
    best = reward.score(answer(right, columns=RECORD))
    worst = reward.score(answer("41", columns=RECORD))
    assert isinstance(best, Scored) and isinstance(worst, Scored)
    assert best.value > worst.value


def test_task_without_answer_is_unscored_where_one_is_needed(name, reward):
    result = reward.score(answer("42", None))
    if name in NEED_NO_ANSWER - {"reasoning_gym"}:
        assert isinstance(result, Scored)
    else:
        assert isinstance(result, Unscored)
        assert "task has no" in result.reason


@pytest.mark.parametrize("response", ["42", "4", ""])
def test_truncation_changes_the_kind_of_no_result(reward, response):
    results = [
        reward.score(answer(response, columns=RECORD, is_truncated=is_truncated))
        for is_truncated in (False, True)
    ]
    assert type(results[0]) is type(results[1])
    assert_kept(results[1])


@pytest.mark.parametrize("split", ["train", "eval"])
def test_both_splits_are_graded(reward, split):
    assert_kept(reward.score(answer("42", columns=RECORD, split=split)))


def test_reward_keeps_no_state_between_answers(reward):
    def score(one: Answer) -> object:
        return reward.score(one)

    one, other = answer("42", columns=RECORD), answer("x" * 50, "x", columns=RECORD)
    first = score(one)
    score(other)
    assert score(one) == first
