"""Runs the N sibling episodes of one task: sample, read as text, grade, retry what broke.

An episode whose engine request or grader breaks is tried again up to `max_retries` times
and then kept as failed: it is counted, it never counts as a reward of 0. A seed per
sibling makes the group a function of weights, run seed and group index alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from parity.errors import TrainingError
from parity.ledger.keys import sibling_seeds
from parity.rollouts.buffer import NO_SCORED_EPISODE, Dropped
from parity.rollouts.config import RolloutsConfig, SamplingConfig
from parity.rollouts.generation import Generation
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

BUDGET_EPISODES = 1000  # the newest ones, over which the share of failures is taken
LEAST_EPISODES = 100  # below it no share is judged
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0  # before what broke is graded again; doubled each time
TIMED_OUT = "generation timed out (rollouts.episode_timeout_s)"


class Grader(Protocol):
    """What grades answers: as many results as answers, in their order."""

    async def grade(self, answers: Sequence[Answer]) -> list[RewardResult]:
        """Judge the answers."""
        ...


class Record(Protocol):
    """Who is told what becomes of episodes and groups: the ledger."""

    def generated(
        self, group: int, sibling: int, episode: Episode, *, sampling_attempt: int = 0
    ) -> None:
        """An episode has all its tokens."""
        ...

    def scored(self, group: int, sibling: int, reward: RewardResult) -> None:
        """An episode has its final result."""
        ...

    def admitted(self, group: int) -> None:
        """A group will be trained."""
        ...

    def ended(
        self, group: int, outcome: Literal["dropped", "failed"], *, reason: str, detail: str = ""
    ) -> None:
        """A group won't be trained."""
        ...


class NoRecord(Record):
    """Remembers nothing."""

    def generated(
        self, group: int, sibling: int, episode: Episode, *, sampling_attempt: int = 0
    ) -> None:
        """Do nothing."""

    def scored(self, group: int, sibling: int, reward: RewardResult) -> None:
        """Do nothing."""

    def admitted(self, group: int) -> None:
        """Do nothing."""

    def ended(
        self, group: int, outcome: Literal["dropped", "failed"], *, reason: str, detail: str = ""
    ) -> None:
        """Do nothing."""


class FailureBudget:
    """The share of episodes that may fail, among the newest ones; the run ends above it."""

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._newest: deque[bool] = deque(maxlen=BUDGET_EPISODES)  # whether each one failed

    def add(self, *, failed: int, ended: int, reason: str) -> None:
        """Some more episodes ended; raises TrainingError when the budget is spent."""
        self._newest.extend([True] * failed + [False] * (ended - failed))
        total, of = sum(self._newest), len(self._newest)
        if failed and of >= LEAST_EPISODES and total > self._max_share * of:
            raise TrainingError(
                f"{total} of the last {of} episodes failed (last: {reason}), more than "
                f"rollouts.max_failed_share={self._max_share} allows; mend the reward or the "
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

    def samplings_of(
        self, group: int, *, num_siblings: int, temperature: float, attempt: int = 0
    ) -> list[Sampling]:
        """The sampling of every sibling, each with a seed of its own."""
        seeds = sibling_seeds(self.seed, task=group, num_siblings=num_siblings, attempt=attempt)
        return [self._sampling(seed, temperature) for seed in seeds]

    def _sampling(self, seed: int, temperature: float) -> Sampling:
        return Sampling(
            max_new_tokens=self.sampling.max_new_tokens,
            temperature=temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            seed=seed,
            stop=self.sampling.stop,
            stop_token_ids=self.stop_token_ids,
        )


class GroupRunner:
    """Turns a task into a finished group."""

    def __init__(
        self, setup: EpisodeSetup, *, rollouts: RolloutsConfig, record: Record | None = None
    ) -> None:
        """`record` is told what becomes of every episode and group; None: nobody is."""
        self._setup = setup
        self._record = record or NoRecord()
        self._rollouts = rollouts
        self._budget = FailureBudget(rollouts.max_failed_share)
        self.num_ended = 0
        self.num_failed = 0

    async def run(
        self, task: Task, index: int, *, attempt: int = 0, recorded: Group | None = None
    ) -> Group | Dropped:
        """The group of `task`; Dropped where it can't teach anything and the config says so.

        Args:
            attempt: how often the group was issued before.
            recorded: its episodes, where an earlier process made and recorded them.
        """
        group = recorded or await self._group(task, index, attempt)
        outcome = self._judged(group)
        if isinstance(outcome, Group):
            self._record.admitted(index)
        else:
            is_failed = outcome.reason == NO_SCORED_EPISODE
            self._record.ended(
                index,
                "failed" if is_failed else "dropped",
                reason=outcome.reason,
                detail=outcome.detail,
            )
        return outcome

    async def _group(self, task: Task, index: int, attempt: int) -> Group:
        """Generated, graded and recorded."""
        completions = await self._completions(task, index, attempt)
        open_episodes = [
            episode_of(task, f"{index}/{n}", completion, self._setup.decode)
            for n, (completion, _) in enumerate(completions)
        ]
        for n, (episode, (_, tried)) in enumerate(zip(open_episodes, completions, strict=True)):
            self._record.generated(index, n, episode, sampling_attempt=tried)
        episodes = await grade_episodes(
            open_episodes,
            self._setup.grader,
            max_retries=self._rollouts.max_retries,
            split="train",
        )
        for n, episode in enumerate(episodes):
            self._record.scored(index, n, episode.reward)
        self._count(episodes)
        return Group(task=task, episodes=tuple(episodes), index=index)

    def _judged(self, group: Group) -> Group | Dropped:
        values = [value for value in group.rewards if value is not None]
        if not values:
            return Dropped(group.index, NO_SCORED_EPISODE, why_unscored(group.episodes))
        if self._rollouts.drop_zero_spread and len(set(values)) == 1:
            return Dropped(group.index, "zero_spread")
        return group

    async def _completions(
        self, task: Task, index: int, attempt: int
    ) -> list[tuple[Completion, int]]:
        """One per sibling, with the attempt that its seed is of.

        The siblings begin together, so one time limit is that of each.
        """
        siblings = range(self._rollouts.group_size)
        tries = self._rollouts.max_retries + 1
        found: dict[int, tuple[Completion, int]] = {}
        for tried in range(attempt * tries, (attempt + 1) * tries):
            missing = [n for n in siblings if n not in found]
            if not missing:
                break
            samplings = self._setup.samplings_of(
                index,
                num_siblings=len(siblings),
                temperature=self._setup.sampling.temperature,
                attempt=tried,
            )
            done = await self._tried(
                {n: self._setup.generation.generate(task.tokens, samplings[n]) for n in missing}
            )
            found |= {n: (completion, tried) for n, completion in done.items()}
        given_up = (Completion((), (), (), "abort"), (attempt + 1) * tries - 1)
        return [found.get(n, given_up) for n in siblings]

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
        reason = failures[-1] if failures else ""
        self._budget.add(failed=len(failures), ended=len(episodes), reason=reason)


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
            graded[n] = replace(episode, reward=GraderFailure(TIMED_OUT, False))
    for tried in range(max_retries + 1):
        if not open_positions:
            break
        if tried:
            await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (tried - 1)))
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
