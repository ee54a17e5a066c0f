"""Runs the N sibling episodes of one task: sample, read as text, grade, retry what broke.

An episode whose engine request or grader breaks is tried again up to `max_retries` times
and then kept as failed: it is counted, it never counts as a reward of 0. A seed per
sibling makes the group a function of weights, run seed and group index alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from parity.ledger.keys import sibling_seeds
from parity.rollouts.budget import FailureBudget
from parity.rollouts.buffer import NO_SCORED_EPISODE, Dropped
from parity.rollouts.config import RolloutsConfig, SamplingConfig
from parity.rollouts.generation import Generation
from parity.rollouts.retries import Retries, failures_of, is_worth_retrying, outcomes
from parity.types import (
    NO_VERSION,
    Answer,
    Completion,
    Episode,
    GraderFailure,
    Group,
    Json,
    RewardResult,
    Sampling,
    Scored,
    Split,
    Task,
)

NO_TOKENS = Completion((), (), (), "abort")  # of an episode whose generation failed


class Grader(Protocol):
    """What grades answers: as many results as answers, in their order."""

    async def grade(self, answers: Sequence[Answer], *, alone: bool = False) -> list[RewardResult]:
        """Judge the answers; `alone`: each in a process that has graded nothing before it."""
        ...


class Record(Protocol):
    """Who is told what becomes of episodes and groups: the ledger."""

    def generated(
        self, group: int, episodes: Sequence[Episode], *, sampling_attempts: Sequence[int] = ()
    ) -> None:
        """All siblings have all their tokens; no attempts: 0 for all."""
        ...

    def scored(self, group: int, rewards: Sequence[RewardResult]) -> None:
        """All siblings have their final result."""
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
        self, group: int, episodes: Sequence[Episode], *, sampling_attempts: Sequence[int] = ()
    ) -> None:
        """Do nothing."""

    def scored(self, group: int, rewards: Sequence[RewardResult]) -> None:
        """Do nothing."""

    def admitted(self, group: int) -> None:
        """Do nothing."""

    def ended(
        self, group: int, outcome: Literal["dropped", "failed"], *, reason: str, detail: str = ""
    ) -> None:
        """Do nothing."""


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
        self,
        setup: EpisodeSetup,
        rollouts: RolloutsConfig,
        record: Record | None = None,
        *,
        failures: Json = None,
    ) -> None:
        """`failures` is the state that a checkpoint has of `budget`.

        Args:
            record: is told what becomes of every episode and group; None: nobody is.
        """
        self._setup = setup
        self._record = record or NoRecord()
        self._rollouts = rollouts
        self._retries = Retries(rollouts.max_retries)
        self.budget = FailureBudget(rollouts.max_failed_share, state=failures)
        self._told: dict[str, int] = {}  # what `new_failures` said so far
        self.num_ended = 0
        self.num_failed = 0  # engine or grader broke
        self.num_ungenerated = 0  # of these: the engine

    async def run(
        self, task: Task, index: int, *, attempt: int = 0, recorded: Group | None = None
    ) -> Group | Dropped:
        """The group of `task`; Dropped where it can't teach anything and the config says so.

        Args:
            attempt: how often the group was issued before.
            recorded: its episodes, where an earlier process made and recorded them.
        """
        group = recorded or await self._group(task, index, attempt)
        self._count(group, is_new=recorded is None)
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
            episode_of(task, f"{index}/{n}", result, self._setup.decode)
            for n, (result, _) in enumerate(completions)
        ]
        attempts = [tried for _, tried in completions]
        self._record.generated(index, open_episodes, sampling_attempts=attempts)
        episodes = await grade_episodes(
            open_episodes,
            self._setup.grader,
            retries=self._retries,
            split="train",
        )
        self._record.scored(index, [episode.reward for episode in episodes])
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
    ) -> list[tuple[Completion | GraderFailure, int]]:
        """One per sibling, with the attempt that its seed is of.

        The siblings begin together, so one time limit is that of each.
        """
        missing = list(range(self._rollouts.group_size))
        tries = self._rollouts.max_retries + 1
        found: dict[int, tuple[Completion | GraderFailure, int]] = {}
        for tried in range(tries):
            if tried:
                failures = failures_of([found[n][0] for n in missing])
                await self._retries.pause(tried, f"generation of group {index}", failures)
            samplings = self._setup.samplings_of(
                index,
                num_siblings=self._rollouts.group_size,
                temperature=self._setup.sampling.temperature,
                attempt=attempt * tries + tried,
            )
            done = await outcomes(
                {n: self._setup.generation.generate(task.tokens, samplings[n]) for n in missing},
                timeout_s=self._rollouts.episode_timeout_s,
            )
            found |= {n: (result, attempt * tries + tried) for n, result in done.items()}
            missing = [n for n in missing if is_worth_retrying(found[n][0])]
            if not missing:
                break
        return [found[n] for n in range(self._rollouts.group_size)]

    def _count(self, group: Group, *, is_new: bool) -> None:
        """Count the episodes of a group; those of an earlier process can't end this one."""
        failures = [e for e in group.episodes if isinstance(e.reward, GraderFailure)]
        ended = len(group.episodes)
        if not is_new:
            self.budget.note(group.index, failed=len(failures), ended=ended)
            return
        self.num_ended += ended
        self.num_failed += len(failures)
        self.num_ungenerated += sum(e.finish_reason == "abort" for e in failures)
        reason = why_unscored(failures) if failures else ""
        self.budget.add(group.index, failed=len(failures), ended=ended, reason=reason)

    def new_failures(self) -> dict[str, float]:
        """What broke since the last call, in groups that were trained and in those that weren't."""
        counts = {
            "rollout/engine_failures": self.num_ungenerated,
            "rollout/grader_failures": self.num_failed - self.num_ungenerated,
            "rollout/retries": self._retries.count,
        }
        new = {name: float(count - self._told.get(name, 0)) for name, count in counts.items()}
        self._told = counts
        return new


def why_unscored(episodes: Sequence[Episode]) -> str:
    """The reason of the last episode that has one."""
    reasons = [e.reward.reason for e in episodes if not isinstance(e.reward, Scored)]
    return reasons[-1] if reasons else "no episode"


def episode_of(
    task: Task,
    episode_id: str,
    result: Completion | GraderFailure,
    decode: Callable[[tuple[int, ...]], str],
) -> Episode:
    """The episode of one completion, not graded yet; or a failed one, without an answer."""
    completion = NO_TOKENS if isinstance(result, GraderFailure) else result
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
        reward=replace(result, retryable=False)
        if isinstance(result, GraderFailure)
        else GraderFailure("not graded yet"),
    )


async def grade_episodes(
    episodes: Sequence[Episode], grader: Grader, *, retries: Retries, split: Split
) -> list[Episode]:
    """The episodes with their rewards; what broke is tried again, the rest isn't.

    An answer at which its process was lost is then graded apart from all others, so that it
    fails by its own doing only.
    """
    graded = list(episodes)
    missing = [n for n, episode in enumerate(graded) if episode.finish_reason != "abort"]
    for tried in range(retries.most + 1):
        if not missing:
            break
        if tried:
            failures = failures_of([graded[n].reward for n in missing])
            await retries.pause(tried, f"grading ({split})", failures)
        alone = [n for n in missing if _has_lost_process(graded[n].reward)]
        others = [n for n in missing if n not in alone]
        for chosen, is_alone in ((others, False), (alone, True)):
            answers = [_answer(graded[n], split) for n in chosen]
            results = await grader.grade(answers, alone=is_alone) if answers else []
            for n, result in zip(chosen, results, strict=True):
                graded[n] = replace(graded[n], reward=result)
        missing = [n for n in missing if is_worth_retrying(graded[n].reward)]
    return graded


def _has_lost_process(reward: RewardResult) -> bool:
    return isinstance(reward, GraderFailure) and reward.lost_process


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
