"""The length monitor: the statistic by counting pairs, and what it says of dropped groups."""

import itertools
import json
import math
import random
from statistics import NormalDist, fmean, pstdev

import pytest
from fakes import completion, task
from hypothesis import given
from hypothesis import strategies as st

from parity.observe.advice import Advisor
from parity.rollouts.group import NoRecord, episode_of
from parity.rollouts.length_bias import LengthBias, rank_sum
from parity.types import Episode, Group

LENGTHS = st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=1, max_size=12)


def above(x: int | None, y: int | None) -> float:
    left, right = (float("inf") if n is None else n for n in (x, y))
    return float(left > right) - float(left < right)


@given(LENGTHS, LENGTHS)
def test_the_effect_is_the_share_of_pairs_won_less_the_share_lost(
    x: list[int | None], y: list[int | None]
) -> None:
    by_counting = sum(itertools.starmap(above, itertools.product(x, y))) / (len(x) * len(y))
    assert rank_sum(x, y).effect == pytest.approx(by_counting, abs=1e-12)


@given(LENGTHS, LENGTHS, st.integers(1, 16))
def test_the_test_is_symmetric_and_siblings_only_make_it_more_careful(
    x: list[int | None], y: list[int | None], siblings: int
) -> None:
    one, other = rank_sum(x, y), rank_sum(y, x)
    assert one.effect == pytest.approx(-other.effect)
    assert one.p_value == pytest.approx(other.p_value)
    assert one.p_value <= rank_sum(x, y, siblings=siblings).p_value <= 1.0


@given(st.lists(st.integers(0, 3), min_size=3, max_size=8), st.integers(1, 7))
def test_mean_and_spread_of_the_statistic_are_those_of_all_permutations(
    values: list[int], n: int
) -> None:
    """With many ties: every way to deal the values out, then the normal distribution."""
    n = min(n, len(values) - 1)
    wins: list[float] = []
    for deal in itertools.combinations(range(len(values)), n):
        rest = [values[k] for k in range(len(values)) if k not in deal]
        pairs = itertools.product([values[k] for k in deal], rest)
        wins.append(sum((above(x, y) + 1) / 2 for x, y in pairs))
    spread, center = pstdev(wins), fmean(wins)
    distance = max(0.0, abs(wins[0] - center) - 0.5)
    expected = 1.0 if spread < 1e-9 else math.erfc(distance / spread / math.sqrt(2))
    assert rank_sum(values[:n], values[n:]).p_value == pytest.approx(expected, rel=1e-6)


def test_a_group_counts_as_one_observation() -> None:
    x, y = list(range(30)), list(range(10, 40))
    z = [
        NormalDist().inv_cdf(1 - rank_sum(x, y, siblings=siblings).p_value / 2)
        for siblings in (1, 4)
    ]
    assert z[1] == pytest.approx(z[0] / 2)


def test_the_p_value_is_that_of_all_permutations() -> None:
    """Against every way to deal the values out (brute force, no library)."""
    x, y = [1, 2, 2, 3, 5, 6], [4, 5, 7, 7, 8, 9]
    seen = abs(rank_sum(x, y).effect)
    everything = [*x, *y]
    deals = list(itertools.combinations(range(12), 6))
    extreme = 0
    for deal in deals:
        left = [everything[n] for n in deal]
        right = [everything[n] for n in range(12) if n not in deal]
        extreme += abs(rank_sum(left, right).effect) >= seen - 1e-12
    assert rank_sum(x, y).p_value == pytest.approx(extreme / len(deals), abs=0.01)


def test_equal_samples_show_nothing() -> None:
    assert rank_sum([3, 3], [3, 3, 3]).p_value == 1.0
    with pytest.raises(ValueError, match="need a value"):
        rank_sum([], [1])


def group(index: int, *lengths: int | None) -> Group:
    episodes: list[Episode] = []
    for n, length in enumerate(lengths):
        done = completion(*[8] * (length or 0), finish_reason="abort" if length is None else "stop")
        episodes.append(episode_of(task(index), f"{index}/{n}", done, lambda tokens: ""))
    return Group(task=task(index), episodes=tuple(episodes), index=index)


class Run:
    """Groups through the monitor, as a run does it."""

    def __init__(self, state: object = None) -> None:
        self.monitor = LengthBias(NoRecord(), capacity=8, group_size=2, state=state)  # pyright: ignore

    def made(self, each: Group) -> None:
        self.monitor.generated(each.index, each.episodes)

    def step(self, trained: list[Group], in_flight: tuple[int, ...] = ()) -> dict[str, float]:
        return self.monitor.step(trained, in_flight)


def random_groups(number: int, seed: int) -> list[Group]:
    noise = random.Random(seed)
    return [group(n, *[noise.randint(1, 60)] * 2) for n in range(number)]


def test_nothing_left_out_is_no_bias() -> None:
    run = Run()
    groups = random_groups(20, seed=0)
    for each in groups:
        run.made(each)
    assert run.step(groups) == {"rollout/length_bias": 0.0, "rollout/length_bias_p": 1.0}


def test_dropping_the_long_ones_is_said_with_the_rule_and_dropping_at_random_is_not() -> None:
    groups = random_groups(400, seed=1)
    by_length, by_chance = Run(), Run()
    noise = random.Random(2)
    for each in groups:
        by_length.made(each)
        by_chance.made(each)
    short = [each for each in groups if each.episodes[0].num_response_tokens < 45]
    metrics = by_length.step(short)
    assert metrics["rollout/length_bias"] < -0.15
    assert metrics["rollout/length_bias_p"] < 1e-6
    (sentence,) = Advisor(group_size=2)(metrics)
    assert sentence.startswith("short answers are favoured")
    assert "Mann-Whitney" in sentence
    fair = by_chance.step(noise.sample(groups, 300))
    assert abs(fair["rollout/length_bias"]) < 0.05
    assert Advisor(group_size=2)(fair) == []


def test_the_bias_is_that_of_trained_against_issued() -> None:
    run = Run()
    groups = random_groups(60, seed=3)
    for each in groups:
        run.made(each)
    found = run.step(groups[:40])["rollout/length_bias"]
    issued = [e.num_response_tokens for each in groups for e in each.episodes]
    trained = [e.num_response_tokens for each in groups[:40] for e in each.episodes]
    assert found == pytest.approx(rank_sum(trained, issued).effect)


def test_answers_cut_by_their_time_limit_count_as_the_longest() -> None:
    run = Run()
    groups = [group(n, 5, None) for n in range(200)]
    for each in groups:
        run.made(each)
    assert run.step(groups)["rollout/length_bias"] == pytest.approx(-0.5)


def test_a_group_in_flight_hides_what_came_after_it_until_it_is_starved() -> None:
    run = Run()
    groups = random_groups(3000, seed=4)
    run.made(groups[1])
    assert run.step([groups[1]], in_flight=(0,)) == {}
    metrics: dict[str, float] = {}
    for each in groups[2:]:
        run.made(each)
        metrics = run.step([each], in_flight=(0,))
    assert metrics["rollout/length_bias"] < 0, "two answers that never end are left out"


def test_a_resumed_monitor_goes_on_as_if_nothing_had_happened() -> None:
    groups = random_groups(80, seed=5)
    straight, broken = Run(), Run()
    for run in (straight, broken):
        for each in groups[:40]:
            run.made(each)
        run.step(groups[:30])
    resumed = Run(json.loads(json.dumps(broken.monitor.state())))
    for run in (straight, resumed):
        for each in groups[40:]:
            run.made(each)
    assert straight.step(groups[40:60]) == resumed.step(groups[40:60])
