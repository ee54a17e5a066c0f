import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS
from unit.rewards.answers import answer

from parity.rewards.config import TaskRewardConfig
from parity.rewards.process import wire
from parity.rewards.reasoning_gym import ReasoningGymReward
from parity.types import GraderFailure, Scored, Unscored

EXACT = ReasoningGymReward(TaskRewardConfig())
PARTIAL = ReasoningGymReward(TaskRewardConfig(exact_only=False))


def record(dataset: str, index: int = 0, **options) -> dict:
    data = reasoning_gym.create_dataset(dataset, seed=1, size=3, **options)
    return {"dataset": dataset, "settings": options, "entry": data[index]}


def sent(response: str, columns: dict):
    """The answer as a grader process sees it."""
    line = wire.encode_answer(answer(response, None, columns=columns))
    return wire.decode_answer(line)


# `composite` needs a list of other data sets; the index of knight_swap takes seconds to make.
@pytest.mark.parametrize("dataset", sorted(set(DATASETS) - {"composite", "knight_swap"}))
def test_own_answer_of_every_data_set_is_right_after_the_way_to_the_grader(dataset):
    columns = record(dataset)
    own = columns["entry"]["answer"]
    if own is None:
        assert EXACT.score(sent("surely not", columns)) == Scored(0.0)
    else:
        assert EXACT.score(sent(own, columns)) == Scored(1.0)


@pytest.mark.parametrize(
    ("dataset", "response", "partial"),
    [("countdown", "no", 0.01), ("countdown", "1", 0.05), ("gsm_symbolic", "-1", 0.01)],
)
def test_tiny_scores_of_wrong_answers_count_only_where_partial_scores_are_wanted(
    dataset, response, partial
):
    columns = record(dataset)
    assert EXACT.score(answer(response, columns=columns)) == Scored(0.0)
    assert PARTIAL.score(answer(response, columns=columns)) == Scored(partial)


def test_right_answer_inside_a_longer_one_is_partial():
    columns = record("lcm")
    own = columns["entry"]["answer"]
    response = f"it is {own}"
    assert EXACT.score(answer(response, columns=columns)) == Scored(0.0)
    result = PARTIAL.score(answer(response, columns=columns))
    assert result == Scored(len(own) / len(response))


def test_white_space_around_the_answer_is_removed_on_request_only():
    columns = record("lcm")
    response = f" {columns['entry']['answer']}\n"
    assert EXACT.score(answer(response, columns=columns)) == Scored(1.0)
    strict = ReasoningGymReward(TaskRewardConfig(strip=False))
    assert strict.score(answer(response, columns=columns)) == Scored(0.0)


def test_answer_that_the_verifier_cannot_read_is_wrong():
    columns = record("prime_factorization")
    assert EXACT.score(answer("zzz", columns=columns)) == Scored(0.0)
    assert PARTIAL.score(answer("zzz", columns=columns)) == Scored(0.0)


def test_verifier_that_breaks_on_the_own_answer_is_a_failure():
    columns = record("prime_factorization")
    columns["entry"] = {**columns["entry"], "answer": "broken"}
    result = EXACT.score(answer("zzz", columns=columns))
    assert isinstance(result, GraderFailure)
    assert "ValueError" in result.reason


def test_settings_reach_the_data_set_which_is_made_once():
    reward = ReasoningGymReward(TaskRewardConfig())
    for index in range(3):
        columns = record("spell_backward", index, min_word_len=4)
        assert reward.score(answer(columns["entry"]["answer"], columns=columns)) == Scored(1.0)
    columns = record("spell_backward", min_word_len=5)
    reward.score(answer("x", columns=columns))
    assert len(reward._datasets) == 2


@pytest.mark.parametrize(
    "columns", [{}, {"dataset": "chain_sum"}, {"dataset": 1, "entry": {}}, {"entry": {}}]
)
def test_task_from_elsewhere_is_unscored(columns):
    result = EXACT.score(answer("42", columns=columns))
    assert isinstance(result, Unscored)
    assert "no reasoning-gym record" in result.reason
