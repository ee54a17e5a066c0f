"""Runs the N sibling episodes of one task: sample, read as text, grade, retry what broke.

An episode whose engine request or grader breaks is tried again up to `max_retries` times
and then kept as failed: it is counted, it never counts as a reward of 0. A seed per
sibling makes the group a function of weights, run seed and group index alone.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from parity.errors import TrainingError
from parity.rollouts.buffer import NO_SCORED_EPISODE, Dropped
from parity.rollouts.config import RolloutsConfig, SamplingConfig
from parity.rollouts.generation import Generation
from parity.rollouts.seeds import sampling_seed
from parity.types import (
    NO_VERSION,
    Answer,
    Completion,
    Episode,
    GraderFailure,
    Group,
    RewardResult,
    Sampling,
    Scored,
    Split,
    Task,
)


class Grader(Protocol):
    """What grades answers: as many results as answers, in their order."""

    async def grade(self, answers: Sequence[Answer]) -> list[RewardResult]:
        """Judge the answers."""
        ...


@dataclass(frozen=True, slots=True)
class FailureBudget:
    """How many episodes failed of those that ended; the run ends when the share is too high."""

    max_share: float
    least_episodes: int = 100  # below it no share is judged

    def check(self, *, failed: int, ended: int, reason: str) -> None:
        """Raise TrainingError when the budget is spent."""
        if ended >= self.least_episodes and failed > self.max_share * ended:
            raise TrainingError(
                f"{failed} of {ended} episodes failed (last: {reason}), more than "
                f"rollouts.max_failed_share={self.max_share} allows; mend the reward or the "
                "engine, or raise the share."
            )


@dataclass(frozen=True, kw_only=True)
class EpisodeSetup:
    """What every episode of a run is made with, in training and in evaluation."""

    generation: Generation
    grader: Grader
    decode: Callable[[tuple[int, ...]], str]
    sampling: SamplingConfig
    stop_token_ids: tuple[int, ...]
    seed: int

    def sampling_of(
        self, *, group: int, sibling: int, temperature: float, attempt: int = 0
    ) -> Sampling:
        """The sampling of one sibling, with a seed of its own."""
        return Sampling(
            max_new_tokens=self.sampling.max_new_tokens,
            temperature=temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            seed=sampling_seed(self.seed, task=group, sibling=sibling, attempt=attempt),
            stop=self.sampling.stop,
            stop_token_ids=self.stop_token_ids,
        )


class GroupRunner:
    """Turns a task into a finished group."""

    def __init__(self, setup: EpisodeSetup, *, rollouts: RolloutsConfig) -> None:
        self._setup = setup
        self._rollouts = rollouts
        self._budget = FailureBudget(rollouts.max_failed_share)
        self.num_ended = 0
        self.num_failed = 0

    async def run(self, task: Task, index: int) -> Group | Dropped:
        """The group of `task`; Dropped where it can't teach anything and the config says so."""
        completions = await self._completions(task, index)
        episodes = await grade_episodes(
            [
                episode_of(task, f"{index}/{n}", completion, self._setup.decode)
                for n, completion in enumerate(completions)
            ],
            self._setup.grader,
            max_retries=self._rollouts.max_retries,
            split="train",
        )
        self._count(episodes)
        group = Group(task=task, episodes=tuple(episodes), index=index)
        values = [value for value in group.rewards if value is not None]
        if not values:
            return Dropped(index, NO_SCORED_EPISODE, why_unscored(episodes))
        if self._rollouts.drop_zero_spread and len(set(values)) == 1:
            return Dropped(index, "zero_spread")
        return group

    async def _completions(self, task: Task, index: int) -> list[Completion]:
        """One per sibling; they begin together, so one time limit is that of each."""
        siblings = range(self._rollouts.group_size)
        found: dict[int, Completion] = {}
        for attempt in range(self._rollouts.max_retries + 1):
            missing = [n for n in siblings if n not in found]
            if not missing:
                break
            found |= await self._tried({n: self._request(task, index, n, attempt) for n in missing})
        return [found.get(n, Completion((), (), (), "abort")) for n in siblings]

    def _request(
        self, task: Task, index: int, sibling: int, attempt: int
    ) -> Coroutine[None, None, Completion]:
        sampling = self._setup.sampling_of(
            group=index,
            sibling=sibling,
            attempt=attempt,
            temperature=self._setup.sampling.temperature,
        )
        return self._setup.generation.generate(task.tokens, sampling)

    async def _tried(
        self, requests: Mapping[int, Coroutine[None, None, Completion]]
    ) -> dict[int, Completion]:
        """What came within the time limit; the others are ended."""
        tries = {n: asyncio.create_task(request) for n, request in requests.items()}
        try:
            _, late = await asyncio.wait(
                tries.values(),
                timeout=self._rollouts.episode_timeout_s,
                return_when=asyncio.FIRST_EXCEPTION,
            )
        finally:
            for one in tries.values():
                one.cancel()
        if late:
            await asyncio.wait(late)
        return {n: one.result() for n, one in tries.items() if not one.cancelled()}

    def _count(self, episodes: Sequence[Episode]) -> None:
        failures = [e.reward.reason for e in episodes if isinstance(e.reward, GraderFailure)]
        self.num_ended += len(episodes)
        self.num_failed += len(failures)
        if failures:
            self._budget.check(failed=self.num_failed, ended=self.num_ended, reason=failures[-1])


def why_unscored(episodes: Sequence[Episode]) -> str:
    """The reason of the last episode that has one."""
    reasons = [e.reward.reason for e in episodes if not isinstance(e.reward, Scored)]
    return reasons[-1] if reasons else "no episode"


def episode_of(
    task: Task,
    episode_id: str,
    completion: Completion,
    decode: Callable[[tuple[int, ...]], str],
) -> Episode:
    """The episode of one completion, not graded yet."""
    num_prompt, num_new = len(task.tokens), len(completion.tokens)
    return Episode(
        episode_id=episode_id,
        task=task,
        tokens=task.tokens + completion.tokens,
        loss_mask=(False,) * num_prompt + (True,) * num_new,
        logprobs=(0.0,) * num_prompt + completion.logprobs,
        versions=(NO_VERSION,) * num_prompt + completion.versions,
        response=decode(completion.tokens),
        finish_reason=completion.finish_reason,
        reward=GraderFailure("not graded yet"),
    )


async def grade_episodes(
    episodes: Sequence[Episode], grader: Grader, *, max_retries: int, split: Split
) -> list[Episode]:
    """The episodes with their rewards; what broke is tried again, the rest isn't."""
    graded = list(episodes)
    open_positions = [n for n, e in enumerate(graded) if e.finish_reason != "abort"]
    for n, episode in enumerate(graded):
        if episode.finish_reason == "abort":
            graded[n] = replace(episode, reward=GraderFailure("generation timed out", False))
    for _ in range(max_retries + 1):
        if not open_positions:
            break
        results = await grader.grade([_answer(graded[n], split) for n in open_positions])
        for n, result in zip(open_positions, results, strict=True):
            graded[n] = replace(graded[n], reward=result)
        open_positions = [n for n in open_positions if _is_worth_retrying(graded[n].reward)]
    return graded


def _is_worth_retrying(reward: RewardResult) -> bool:
    return isinstance(reward, GraderFailure) and reward.retryable


def _answer(episode: Episode, split: Split) -> Answer:
    return Answer(
        task_id=episode.task.task_id,
        question=episode.task.question,
        response=episode.response,
        expected=episode.task.answer,
        columns=episode.task.columns,
        is_truncated=episode.finish_reason == "length",
        split=split,
    )


def mean_reward(groups: Sequence[Group]) -> tuple[float | None, int]:
    """Mean over scored episodes (None without any) and how many there are."""
    values = [e.reward.value for g in groups for e in g.episodes if isinstance(e.reward, Scored)]
    return (sum(values) / len(values) if values else None), len(values)
