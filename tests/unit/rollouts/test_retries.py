"""What breaks is tried again, bounded; real grader processes where answers break them."""

import asyncio
from pathlib import Path

import pytest
from fakes import ScriptedEngine, completion, task

from parity.errors import EngineError, EngineLostError, RequestError
from parity.rewards.config import GraderConfig, PythonRewardConfig
from parity.rewards.grader import GraderPool
from parity.rollouts.buffer import Dropped
from parity.rollouts.config import RolloutsConfig, SamplingConfig
from parity.rollouts.generation import Generation
from parity.rollouts.group import (
    EpisodeSetup,
    GroupRunner,
    NoRecord,
    episode_of,
    grade_episodes,
)
from parity.rollouts.retries import LONGEST_PAUSE_S, Retries, outcomes, pause_s, pauses_s
from parity.types import Completion, Episode, GraderFailure, Group, Scored, Split

MISBEHAVE = PythonRewardConfig(function="unit.rewards.answers:misbehave")


class Pauses:
    """Notes how long it would have slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Troubled(ScriptedEngine):
    """Raises what the script says, in turn; None is an answer."""

    def __init__(self, *script: Exception | None) -> None:
        super().__init__(lambda tokens, sampling: completion(8, 9, 1))
        self.script = list(script)

    async def generate(self, tokens, sampling, *, request_id=None) -> Completion:
        error = self.script.pop(0) if self.script else None
        found = await super().generate(tokens, sampling, request_id=request_id)
        if error is not None:
            raise error
        return found


class Told(NoRecord):
    """Remembers the reasons."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.attempts: list[int] = []
        self.ends: list[str] = []

    def generated(self, group, episodes, *, sampling_attempts=()) -> None:
        self.attempts += sampling_attempts

    def scored(self, group, rewards) -> None:
        self.reasons += ["" if isinstance(reward, Scored) else reward.reason for reward in rewards]

    def ended(self, group, outcome, *, reason, detail="") -> None:
        self.ends.append(f"{outcome}: {reason}: {detail}")


class Ones:
    async def grade(self, answers, *, alone=False):
        return [Scored(1.0)] * len(answers)


def runner_of(engine: ScriptedEngine, record: Told, **rollouts) -> GroupRunner:
    setup = EpisodeSetup(
        generation=Generation(engine, in_flight="continue"),
        grader=Ones(),
        decode=lambda tokens: " ".join(map(str, tokens)),
        sampling=SamplingConfig(max_new_tokens=4),
        stop_token_ids=(1,),
        seed=0,
    )
    return GroupRunner(setup, rollouts=RolloutsConfig(group_size=2, **rollouts), record=record)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.rollouts.retries.FIRST_PAUSE_S", 0.001)


@pytest.mark.usefixtures("at_once")
def test_a_transient_engine_error_is_tried_again_with_another_seed() -> None:
    engine, told = Troubled(EngineError("no memory just now"), None, None), Told()
    runner = runner_of(engine, told, max_retries=2)
    outcome = asyncio.run(runner.run(task(), 0))
    assert isinstance(outcome, Group)
    assert outcome.rewards == (1.0, 1.0)
    assert told.attempts == [1, 0]
    assert len({sampling.seed for sampling in engine.samplings}) == 3
    assert runner.new_failures() == {
        "rollout/engine_failures": 0,
        "rollout/grader_failures": 0,
        "rollout/retries": 1,
    }
    assert runner.num_failed == 0


@pytest.mark.usefixtures("at_once")
def test_a_lasting_engine_error_becomes_a_failed_episode_with_its_reason() -> None:
    broken = [EngineError("no memory")] * 10
    engine, told = Troubled(*broken), Told()
    runner = runner_of(engine, told, max_retries=2)
    outcome = asyncio.run(runner.run(task(), 4))
    assert outcome == Dropped(4, "no_scored_episode", "the engine: no memory")
    assert len(engine.samplings) == 2 * 3
    assert told.reasons == ["the engine: no memory"] * 2
    assert told.ends == ["failed: no_scored_episode: the engine: no memory"]
    assert runner.budget.state() == [[4, 2, 2]]
    assert runner.new_failures()["rollout/engine_failures"] == 2
    assert runner.new_failures()["rollout/engine_failures"] == 0


@pytest.mark.parametrize("error", [RequestError("too long"), TypeError("a bug")])
def test_what_no_other_try_can_mend_is_not_tried_again(error: Exception) -> None:
    engine, told = Troubled(error), Told()
    outcome = asyncio.run(runner_of(engine, told, max_retries=5).run(task(), 0))
    assert isinstance(outcome, Group)
    assert outcome.rewards == (None, 1.0)
    assert len(engine.samplings) == 2
    assert str(error) in told.reasons[0]


def test_a_lost_engine_ends_the_run_at_once_and_leaves_no_request() -> None:
    async def body() -> None:
        waiting = ScriptedEngine()

        async def lost() -> Completion:
            raise EngineLostError("the engine was closed")

        requests = {0: waiting.generate((1,), None, request_id="a"), 1: lost()}
        async with asyncio.timeout(5):
            with pytest.raises(EngineLostError, match="was closed"):
                await outcomes(requests, timeout_s=600)
        assert waiting.requests == {}

    asyncio.run(body())


@pytest.mark.usefixtures("at_once")
def test_a_request_that_the_engine_breaks_off_is_tried_again() -> None:
    script = [completion(8, finish_reason="abort"), completion(8, 1), completion(8, 1)]
    engine, told = ScriptedEngine(lambda tokens, sampling: script.pop(0)), Told()
    outcome = asyncio.run(runner_of(engine, told, max_retries=1).run(task(), 0))
    assert isinstance(outcome, Group)
    assert outcome.rewards == (1.0, 1.0)


def test_cancelling_a_group_ends_its_requests_before_it_returns() -> None:
    async def body() -> None:
        engine = ScriptedEngine()
        group = asyncio.create_task(runner_of(engine, Told()).run(task(), 0))
        while len(engine.requests) < 2:
            await asyncio.sleep(0)
        group.cancel()
        with pytest.raises(asyncio.CancelledError):
            await group
        assert engine.requests == {}

    asyncio.run(body())


def test_pauses_double_up_to_a_bound() -> None:
    assert [pause_s(tried) for tried in (1, 2, 3)] == [0.25, 0.5, 1.0]
    assert pause_s(10**6) == LONGEST_PAUSE_S
    assert pauses_s(3) == 1.75
    assert pauses_s(0) == 0.0


def graded(
    *responses: str, most: int, split: Split = "train", **grader
) -> tuple[list[Episode], list[float]]:
    """What real processes make of the responses, and the pauses between tries."""
    pauses = Pauses()

    async def run() -> list[Episode]:
        episodes = [
            episode_of(task(n), f"0/{n}", completion(8, 1), lambda _, text=text: text)
            for n, text in enumerate(responses)
        ]
        async with GraderPool(MISBEHAVE, GraderConfig(**grader)) as pool:
            retries = Retries(most, sleep=pauses)
            return await grade_episodes(episodes, pool, retries=retries, split=split)

    return asyncio.run(run()), pauses.seconds


def test_an_answer_whose_grader_froze_is_graded_in_a_new_process(tmp_path: Path) -> None:
    frozen = f"freeze-once {tmp_path / 'flag'}"
    found, pauses = graded("1", frozen, "3", most=1, timeout_s=1.0)
    assert [episode.reward for episode in found] == [Scored(1.0), Scored(1.0), Scored(3.0)]
    assert pauses == [0.25]


@pytest.mark.parametrize("poison", ["hang", "exit", "segfault"])
def test_a_poisonous_answer_fails_after_its_tries_and_costs_no_neighbour(poison: str) -> None:
    found, pauses = graded("1", poison, "3", most=2, timeout_s=1.0)
    failed = found[1].reward
    assert isinstance(failed, GraderFailure)
    assert (found[0].reward, found[2].reward) == (Scored(1.0), Scored(3.0))
    assert pauses == [0.25, 0.5]


def test_an_answer_that_spoils_its_process_cannot_fail_another_again_and_again() -> None:
    found, _ = graded("leave", "7", most=2, timeout_s=1.0)
    spoiler, innocent = found
    assert isinstance(spoiler.reward, GraderFailure)
    assert innocent.reward == Scored(7.0)
