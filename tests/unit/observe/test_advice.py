import math

import pytest

from parity.observe.advice import Advisor, advise
from parity.observe.names import check

HEALTHY: dict[str, float | None] = {
    "rollout/raw_reward": 0.4,
    "rollout/reward_std": math.sqrt(0.4 * 0.6),
    "rollout/truncated_share": 0.05,
    "rollout/zero_spread_share": 0.2,
    "rollout/response_tokens_max": 256,
    "rollout/lag_max": 0,
    "train/entropy": 1.0,
    "train/train_rollout_logprob_abs_diff": 1e-5,
}


def row(**changes: float | None) -> dict[str, float | None]:
    """A healthy row with changes; `reward` also sets the spread of 0/1 rewards."""
    names = {
        "cut": "rollout/truncated_share",
        "equal": "rollout/zero_spread_share",
        "entropy": "train/entropy",
        "lag": "rollout/lag_max",
        "diff": "train/train_rollout_logprob_abs_diff",
        "std": "rollout/reward_std",
    }
    found = dict(HEALTHY)
    if (reward := changes.pop("reward", None)) is not None:
        found["rollout/raw_reward"] = reward
        if "std" not in changes:
            found["rollout/reward_std"] = math.sqrt(reward * (1 - reward))
    found.update({names[key]: value for key, value in changes.items()})
    return found


def keys(rows: list[dict[str, float | None]], group_size: int = 8) -> list[str]:
    return [hint.key for hint in advise(rows, group_size=group_size)]


def text(rows: list[dict[str, float | None]], group_size: int = 8) -> str:
    (hint,) = advise(rows, group_size=group_size)
    return hint.text


def test_the_metrics_looked_at_are_declared() -> None:
    check(HEALTHY)


@pytest.mark.parametrize("steps", [1, 4, 5, 50])
def test_a_healthy_run_hears_nothing(steps: int) -> None:
    assert advise([row()] * steps, group_size=8) == []


@pytest.mark.parametrize("steps", [1, 50])
def test_unknown_metrics_lead_to_no_advice(steps: int) -> None:
    assert advise([{}] * steps, group_size=8) == []
    assert advise([dict.fromkeys(HEALTHY)] * steps, group_size=8) == []
    assert advise([dict.fromkeys(HEALTHY, math.nan)] * steps, group_size=8) == []


def test_a_cap_that_cuts_every_answer_is_told_at_the_first_step() -> None:
    sentence = text([row(reward=0.0, cut=1.0, equal=1.0)])
    assert "100% of the answers were cut" in sentence
    assert "256 tokens" in sentence
    assert "sampling.max_new_tokens" in sentence


def test_cut_answers_with_a_spread_are_no_reason_to_warn() -> None:
    assert keys([row(cut=1.0)] * 50) == []


def test_cut_answers_are_the_only_hint_where_they_explain_equal_rewards() -> None:
    assert keys([row(reward=0.0, cut=1.0, equal=1.0)] * 10) == ["all_truncated"]


def test_a_rare_reward_in_groups_of_two_is_told_with_the_expected_share() -> None:
    sentence = text([row(reward=0.18, equal=0.71)] * 5, group_size=2)
    assert "only 29% of the groups" in sentence
    assert "a success rate of 0.18 with groups of 2 gives up to 30%" in sentence
    assert "groups of 8 up to 80%" in sentence
    assert "rollouts.group_size" in sentence


def test_one_bad_step_is_no_evidence() -> None:
    assert keys([row()] * 4 + [row(reward=0.18, equal=0.9)], group_size=2) == []
    assert keys([row(reward=0.18, equal=0.9)] * 4, group_size=2) == []


def test_tasks_that_are_always_or_never_solved_are_told_apart() -> None:
    sentence = text([row(reward=0.5, equal=0.9)] * 5)
    assert "always or never solved" in sentence
    assert "rollouts.drop_zero_spread" in sentence


def test_no_reward_at_all_is_told_plainly() -> None:
    assert "no answer of the last 5 steps earned a reward" in text([row(reward=0.0, equal=1.0)] * 5)


@pytest.mark.parametrize("reward", [0.9, 0.99, 1.0])
def test_a_solved_task_is_no_reason_to_warn(reward: float) -> None:
    assert keys([row(reward=reward, equal=1.0)] * 50) == []


def test_without_a_known_maximum_only_a_run_that_did_not_learn_is_warned() -> None:
    stuck = [row(reward=0.3, std=0.0, equal=1.0)] * 20
    assert keys(stuck) == ["few_informative_groups"]
    assert "success rate" not in text(stuck)
    learned = [row(reward=0.3, std=0.1)] * 5 + [row(reward=0.7, std=0.0, equal=1.0)] * 20
    assert keys(learned) == []


def test_groups_of_one_hear_nothing_about_spread() -> None:
    assert keys([row(equal=1.0)] * 5, group_size=1) == []


def test_entropy_collapse_needs_a_reward_that_stands_still_below_the_goal() -> None:
    early = [row(entropy=1.0)] * 5
    late = [row(entropy=0.01)] * 20
    assert keys(early + late) == ["entropy_collapse"]
    assert "from 1 to 0.01 nats" in text(early + late)
    rising = [row(entropy=0.01, reward=0.4 + 0.02 * n) for n in range(20)]
    assert keys(early + rising) == []
    assert keys(early + [row(entropy=0.01, reward=0.95)] * 20) == []
    assert keys(early + [row(entropy=0.5)] * 20) == []
    assert keys(early + [row(entropy=0.01)] * 6) == []


def test_mismatch_that_grows_without_lag_is_told() -> None:
    early = [row(diff=1e-5)] * 5
    assert keys(early + [row(diff=0.05)] * 5) == ["growing_mismatch"]
    assert "0.05 nats per token, 1e-05 at the start" in text(early + [row(diff=0.05)] * 5)
    assert keys(early + [row(diff=5e-4)] * 5) == []
    assert keys([row(diff=0.02)] * 5 + [row(diff=0.05)] * 5) == []


def test_mismatch_with_lag_is_expected() -> None:
    assert keys([row(diff=1e-5)] * 5 + [row(diff=0.05, lag=1)] * 5) == []
    assert keys([row(diff=1e-5)] * 5 + [row(diff=0.05, lag=None)] * 5) == []


def test_the_advisor_says_each_thing_once_and_again_after_a_long_time() -> None:
    advisor = Advisor(group_size=2)
    bad = row(reward=0.0, cut=1.0, equal=1.0)
    said = [advisor(bad) for _ in range(150)]
    assert [n for n, sentences in enumerate(said) if sentences] == [0, 100]
    assert len(said[0]) == 1


def test_the_advisor_remembers_the_start_of_a_long_run() -> None:
    advisor = Advisor(group_size=8)
    said = [sentence for _ in range(200) for sentence in advisor(row(diff=1e-5))]
    assert said == []
    said = [sentence for _ in range(5) for sentence in advisor(row(diff=0.05))]
    assert len(said) == 1
    assert "1e-05 at the start" in said[0]
