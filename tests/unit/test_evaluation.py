"""Evaluation metrics: known answers only, pass@k, majority vote."""

import asyncio

import pytest
from fakes import FunctionGrader, ScriptedEngine, completion, episode, task

from parity.evaluation import Evaluator, evaluation_metrics
from parity.rollouts.config import SamplingConfig
from parity.rollouts.generation import Generation
from parity.rollouts.group import EpisodeSetup
from parity.types import Episode, GraderFailure, RewardResult, Scored, Unscored


def answers(*rewards: RewardResult, tokens: tuple[int, ...] = (1, 2)) -> list[Episode]:
    owner = task()
    return [episode(owner, *tokens, reward=reward) for reward in rewards]


def test_what_could_not_be_graded_is_left_out_and_counted() -> None:
    found = evaluation_metrics(
        [answers(Scored(1.0), Unscored("?")), answers(Scored(0.0), GraderFailure("x"))]
    )
    assert found["eval/accuracy"] == 0.5
    assert found["eval/scored_share"] == 0.5
    assert found["eval/tasks"] == 2


def test_nothing_graded_gives_no_accuracy_instead_of_zero() -> None:
    found = evaluation_metrics([answers(Unscored("?"))])
    assert "eval/accuracy" not in found
    assert found["eval/scored_share"] == 0.0


def test_a_partial_score_is_not_correct_but_counts_in_the_mean() -> None:
    found = evaluation_metrics([answers(Scored(0.8))])
    assert found["eval/accuracy"] == 0.0
    assert found["eval/mean_reward"] == pytest.approx(0.8)


def test_pass_at_k_and_majority_vote() -> None:
    wrong = answers(Scored(0.0), Scored(0.0), tokens=(3,))
    right = answers(Scored(1.0), tokens=(4,))
    found = evaluation_metrics([wrong + right], ks=(1, 2))
    assert found["eval/pass_at_1"] == pytest.approx(1 / 3)
    assert found["eval/pass_at_2"] == pytest.approx(2 / 3)
    assert found["eval/majority_vote"] == 0.0


def test_the_noise_is_the_same_at_every_call_and_apart_from_training() -> None:
    engine = ScriptedEngine(lambda tokens, sampling: completion(4, 1))
    setup = EpisodeSetup(
        generation=Generation(engine, in_flight="continue"),
        grader=FunctionGrader(lambda answer: Scored(float(answer.split == "eval"))),
        decode=str,
        sampling=SamplingConfig(max_new_tokens=3),
        stop_token_ids=(1,),
        seed=5,
    )
    evaluator = Evaluator(setup, tasks=[task(0), task(1)], temperature=0.7, samples_per_task=2)
    first, _ = asyncio.run(evaluator.run()), asyncio.run(evaluator.run())
    assert first.accuracy == 1.0
    seeds = [sampling.seed for sampling in engine.samplings]
    assert seeds[:4] == seeds[4:]
    assert len(set(seeds)) == 4
    assert {s.temperature for s in engine.samplings} == {0.7}
    (own,) = setup.samplings_of(0, num_siblings=1, temperature=0.7)
    assert own.seed not in seeds
    assert [len(group.episodes) for group in first.groups()] == [2, 2]
