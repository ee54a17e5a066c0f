"""Groups: seeds per sibling, failures that are no zeros, dropping, the failure budget."""

import asyncio

import pytest
from fakes import FunctionGrader, ScriptedEngine, completion, task

from parity.errors import TrainingError
from parity.rollouts.buffer import Dropped
from parity.rollouts.config import RolloutsConfig, SamplingConfig
from parity.rollouts.generation import Generation
from parity.rollouts.group import EpisodeSetup, GroupRunner
from parity.rollouts.samples import by_episode, reward_table, to_samples
from parity.types import Answer, GraderFailure, Group, RewardResult, Scored, Unscored


def runner(grade, *, engine: ScriptedEngine | None = None, **rollouts) -> GroupRunner:
    engine = engine or ScriptedEngine(lambda tokens, sampling: completion(8, 9, 1))
    setup = EpisodeSetup(
        generation=Generation(engine, in_flight="continue"),
        grader=FunctionGrader(grade),
        decode=lambda tokens: " ".join(map(str, tokens)),
        sampling=SamplingConfig(max_new_tokens=4),
        stop_token_ids=(1,),
        seed=0,
    )
    return GroupRunner(setup, rollouts=RolloutsConfig(group_size=4, **rollouts))


class Script:
    """Gives out results in turn."""

    def __init__(self, *results: RewardResult) -> None:
        self.results = list(results)

    def __call__(self, answer: Answer) -> RewardResult:
        return self.results.pop(0)


def test_siblings_have_seeds_of_their_own_and_the_same_ones_every_time() -> None:
    seeds = []
    for _ in range(2):
        engine = ScriptedEngine(lambda tokens, sampling: completion(8, 1))
        asyncio.run(runner(lambda answer: Scored(1.0), engine=engine).run(task(), 3))
        seeds.append([sampling.seed for sampling in engine.samplings])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4


def test_a_broken_grader_is_asked_again_and_then_kept_as_failed_not_as_zero() -> None:
    broken = GraderFailure("no connection")
    script = Script(Scored(1.0), broken, Scored(0.0), Unscored("no answer"), broken, broken)
    outcome = asyncio.run(runner(script, max_retries=2).run(task(), 0))
    assert isinstance(outcome, Group)
    assert outcome.rewards == (1.0, None, 0.0, None)
    assert isinstance(outcome.episodes[1].reward, GraderFailure)
    table = reward_table([outcome])
    advantages = table - table.nanmean(1, keepdim=True)
    samples = to_samples([outcome], advantages)
    assert list(by_episode([outcome], advantages).values()) == [0.5, None, -0.5, None]
    assert [sample.advantages[-1] for sample in samples] == [0.5, -0.5]


def test_a_group_without_any_value_is_dropped() -> None:
    outcome = asyncio.run(runner(lambda answer: Unscored("?")).run(task(), 5))
    assert outcome == Dropped(5, "no_scored_episode", "?")


def test_dynamic_sampling_drops_groups_without_spread() -> None:
    outcome = asyncio.run(runner(lambda a: Scored(1.0), drop_zero_spread=True).run(task(), 5))
    assert outcome == Dropped(5, "zero_spread")


def test_the_run_ends_when_too_many_episodes_fail() -> None:
    many = runner(lambda a: GraderFailure("disk full", retryable=False), max_failed_share=0.5)

    async def body() -> None:
        for index in range(200):
            await many.run(task(index), index)

    with pytest.raises(TrainingError, match="disk full"):
        asyncio.run(body())
    assert many.num_ended == 100


def test_a_generation_that_hangs_becomes_a_failed_episode() -> None:
    engine = ScriptedEngine()
    slow = runner(lambda a: Scored(1.0), engine=engine, episode_timeout_s=0.01, max_retries=1)
    outcome = asyncio.run(slow.run(task(), 0))
    assert outcome == Dropped(
        0, "no_scored_episode", "generation timed out (rollouts.episode_timeout_s)"
    )
    assert slow.num_failed == 4
