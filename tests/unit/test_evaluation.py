"""Evaluation metrics: known answers only, pass@k, majority vote."""

import asyncio

import pytest
from fakes import FunctionGrader, ScriptedEngine, completion, episode, task

from parity.errors import EngineError, EngineLostError, EvaluationError
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


def test_what_is_missing_is_counted_by_its_cause_with_an_interval() -> None:
    rewards = [Scored(1.0)] * 6 + [Unscored("?")] * 3 + [GraderFailure("x")]
    found = evaluation_metrics([answers(reward) for reward in rewards])
    assert found["eval/accuracy"] == 1.0
    assert (found["eval/unscored"], found["eval/failed"]) == (3, 1)
    assert found["eval/unscored_share"] == pytest.approx(0.3)
    assert found["eval/failed_share"] == pytest.approx(0.1)
    for name in ("unscored", "failed"):
        low, share, high = (found[f"eval/{name}_share{end}"] for end in ("_low", "", "_high"))
        assert 0.0 < low < share < high < 1.0


def evaluator_of(grade, *, tasks: int, engine=None, **options) -> Evaluator:
    engine = engine or ScriptedEngine(lambda tokens, sampling: completion(4, 1))
    setup = EpisodeSetup(
        generation=Generation(engine, in_flight="continue"),
        grader=FunctionGrader(grade),
        decode=str,
        sampling=SamplingConfig(max_new_tokens=3),
        stop_token_ids=(1,),
        seed=5,
    )
    owners = [task(n, answer=str(n)) for n in range(tasks)]
    return Evaluator(setup, tasks=owners, temperature=0.0, samples_per_task=1, **options)


def fails_below(number: int):
    def grade(answer):
        if int(answer.expected) < number:
            return GraderFailure("the judge is away", retryable=False)
        return Scored(1.0)

    return grade


def test_an_evaluation_fails_where_more_than_its_share_of_answers_broke() -> None:
    asyncio.run(evaluator_of(fails_below(2), tasks=20, max_failed_share=0.1).run())
    with pytest.raises(EvaluationError, match=r"broke at 3 of 20 answers, of 3 tasks.*is away"):
        asyncio.run(evaluator_of(fails_below(3), tasks=20, max_failed_share=0.1).run())


def test_a_single_poisonous_task_never_fails_an_evaluation_that_has_others() -> None:
    found = asyncio.run(evaluator_of(fails_below(1), tasks=2, max_failed_share=0.0).run())
    assert found.accuracy == 1.0
    assert found.metrics["eval/failed"] == 1
    with pytest.raises(EvaluationError, match="broke at 1 of 1"):
        asyncio.run(evaluator_of(fails_below(1), tasks=1).run())


def test_answers_that_cannot_be_graded_fail_no_evaluation() -> None:
    found = asyncio.run(evaluator_of(lambda answer: Unscored("no answer"), tasks=3).run())
    assert found.accuracy is None
    assert found.metrics["eval/unscored"] == 3


def test_an_engine_that_breaks_once_changes_no_evaluation(monkeypatch) -> None:
    monkeypatch.setattr("parity.rollouts.retries.FIRST_PAUSE_S", 0.001)
    errors = [EngineError("no memory just now")]

    def answer(tokens, sampling):
        if errors:
            raise errors.pop()
        return completion(4, 1)

    engine = ScriptedEngine(answer)
    found = asyncio.run(evaluator_of(fails_below(0), tasks=3, engine=engine).run())
    assert found.metrics["eval/scored_share"] == 1.0
    assert len(engine.samplings) == 4
    assert len({sampling.seed for sampling in engine.samplings}) == 3


def test_a_lost_engine_ends_an_evaluation_with_its_own_error() -> None:
    def answer(tokens, sampling):
        raise EngineLostError("the engine was closed")

    with pytest.raises(EngineLostError, match="was closed"):
        asyncio.run(evaluator_of(fails_below(0), tasks=3, engine=ScriptedEngine(answer)).run())
