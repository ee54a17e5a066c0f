import itertools
import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.observe.statistics import (
    bootstrap_interval,
    expected_informative_share,
    majority_vote,
    mean_pass_at_k,
    pass_at_k,
    wilson_interval,
)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.data())
def test_pass_at_k_is_the_share_of_all_choices_with_a_right_one(
    counts: tuple[int, int], data: st.DataObject
) -> None:
    n, c = counts
    k = data.draw(st.integers(1, n))
    answers = [True] * c + [False] * (n - c)
    choices = [any(choice) for choice in itertools.combinations(answers, k)]
    assert pass_at_k(n, c, k) == pytest.approx(fmean(choices))


def test_pass_at_k_by_hand_and_with_many_answers() -> None:
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(5, 0, 3) == 0.0
    exact = 1 - math.comb(9990, 5000) / math.comb(10000, 5000)
    assert pass_at_k(10_000, 10, 5000) == pytest.approx(exact)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_pass_at_k_refuses_what_it_is_not_defined_for(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"pass@k"):
        pass_at_k(n, c, k)


def test_ungraded_answers_are_left_out_and_tasks_with_too_few_are_unknown() -> None:
    estimate = mean_pass_at_k([[True, None], [False, True], [None, None]], 1)
    assert estimate is not None
    assert estimate.value == pytest.approx(0.75)
    assert (estimate.num_tasks, estimate.num_unknown) == (2, 1)
    assert mean_pass_at_k([[True, None], [None, None]], 2) is None
    assert mean_pass_at_k([], 1) is None


def test_the_bootstrap_is_seeded_and_holds_the_mean() -> None:
    values = [0.0, 1.0, 1.0, 0.5, 0.25, 1.0]
    interval = bootstrap_interval(values, seed=3)
    assert interval == bootstrap_interval(values, seed=3)
    assert interval[0] <= fmean(values) <= interval[1]
    assert bootstrap_interval([0.5]) == (0.5, 0.5)
    narrow = bootstrap_interval(values * 20, seed=3)
    assert narrow[1] - narrow[0] < interval[1] - interval[0]


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_the_bootstrap_refuses_unknown_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval(values)


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    import random

    source = random.Random(0)
    hits = 0
    for trial in range(60):
        values = [float(source.random() < 0.6) for _ in range(60)]
        low, high = bootstrap_interval(values, seed=trial, num_resamples=200)
        hits += low <= 0.6 <= high
    assert hits >= 50


def test_the_wilson_interval_by_hand() -> None:
    # 8 of 10: center (0.8 + 1.9208/10) / (1 + 3.8415/10), see Wilson 1927.
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-3)
    assert high == pytest.approx(0.9433, abs=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_wilson_interval_holds_the_share_and_stays_inside(counts: tuple[int, int]) -> None:
    successes, trials = counts
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= high <= 1
    if trials:
        assert low <= successes / trials <= high
        wide = wilson_interval(successes, trials, confidence=0.99)
        assert wide[0] <= low
        assert wide[1] >= high


def test_no_trials_say_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="successes"):
        wilson_interval(2, 1)
    with pytest.raises(ValueError, match="confidence"):
        wilson_interval(1, 1, confidence=1.0)


def test_the_majority_ignores_unknown_answers_and_takes_the_earliest_of_equals() -> None:
    assert majority_vote(["a", None, "b", None, None, "b"]) == "b"
    assert majority_vote(["b", "a", "a", "b"]) == "b"
    assert majority_vote([None, None]) is None
    assert majority_vote([]) is None
    assert majority_vote([1, 1, 2]) == 1


def test_a_rare_reward_in_groups_of_two_leaves_seventy_percent_of_them_empty() -> None:
    assert 1 - expected_informative_share(0.18, 2) == pytest.approx(0.7048)
    assert expected_informative_share(0.18, 8) > 0.79
    assert expected_informative_share(0.0, 8) == expected_informative_share(1.0, 8) == 0.0
    assert expected_informative_share(0.5, 1) == 0.0
    with pytest.raises(ValueError, match="success_rate"):
        expected_informative_share(1.5, 2)
