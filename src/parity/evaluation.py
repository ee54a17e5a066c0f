"""Evaluation: the same held-out tasks, sampled as asked, graded as in training.

Used during training, by `parity eval` and after SFT. An answer counts as correct when its
reward is at least 1; what could not be graded is left out of every mean and counted.

THE RULE for failures: an answer that its grader can't judge (unscored) is no fault, however many
there are. One whose engine or grader broke is tried again; where that didn't help it has failed. An
evaluation fails (EvaluationError) where no answer is left and some failed, or where more than the
share `max_failed_share` of all answers failed and these are of several tasks: a single poisonous
task never ends a run. It takes nothing from the failure budget of training, which judges by
itself.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from parity.config.schema import EvalConfig
from parity.errors import EvaluationError
from parity.observe.statistics import majority_vote, mean_pass_at_k, wilson_interval
from parity.rewards.config import GraderConfig
from parity.rollouts.config import RolloutsConfig
from parity.rollouts.group import EpisodeSetup, episode_of, grade_episodes, why_unscored
from parity.rollouts.retries import (
    Retries,
    failures_of,
    is_worth_retrying,
    outcomes,
    pauses_s,
)
from parity.types import (
    Completion,
    Episode,
    GraderFailure,
    Group,
    Sampling,
    Scored,
    Task,
    Unscored,
)

CORRECT = 1.0 - 1e-9
SEED_OFFSET = 7_919  # keeps evaluation noise apart from training noise of the same seed


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation found."""

    metrics: dict[str, float]
    episodes: tuple[Episode, ...]

    @property
    def accuracy(self) -> float | None:
        """Share of correct answers among the graded ones; None when none was graded."""
        return self.metrics.get("eval/accuracy")

    def groups(self) -> list[Group]:
        """The episodes as one group per task, for the dump."""
        by_task: dict[str, list[Episode]] = {}
        for episode in self.episodes:
            by_task.setdefault(episode.task.task_id, []).append(episode)
        return [
            Group(task=episodes[0].task, episodes=tuple(episodes), index=index)
            for index, episodes in enumerate(by_task.values())
        ]


class Evaluator:
    """Evaluates whatever weights the engine serves."""

    def __init__(
        self,
        setup: EpisodeSetup,
        *,
        tasks: Sequence[Task],
        temperature: float,
        samples_per_task: int,
        max_retries: int = RolloutsConfig.max_retries,
        max_failed_share: float = RolloutsConfig.max_failed_share,
    ) -> None:
        """`max_retries` and `max_failed_share` are as in `rollouts`."""
        self.tasks = tuple(tasks)
        self._setup = replace(setup, seed=setup.seed + SEED_OFFSET)
        self._temperature = temperature
        self._num_samples = samples_per_task
        self.max_retries = max_retries
        self._max_failed_share = max_failed_share

    async def run(self, *, ks: Sequence[int] = ()) -> Evaluation:
        """Evaluate now; the noise is the same at every call, so differences are the weights'.

        Raises EvaluationError where too many answers failed (the rule above).
        """
        retries = Retries(self.max_retries)
        flat = await grade_episodes(
            await self._answers(retries),
            self._setup.grader,
            retries=retries,
            split="eval",
        )
        n = self._num_samples
        grouped = [flat[i : i + n] for i in range(0, len(flat), n)]
        check_failures(grouped, max_share=self._max_failed_share)
        return Evaluation(metrics=evaluation_metrics(grouped, ks=ks), episodes=tuple(flat))

    async def _answers(self, retries: Retries) -> list[Episode]:
        """Every answer, not graded yet; an error ends those that are under way, too."""
        try:
            async with asyncio.TaskGroup() as siblings:
                running = [
                    siblings.create_task(self._episodes(task, n, retries))
                    for n, task in enumerate(self.tasks)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [episode for one in running for episode in one.result()]

    async def _episodes(self, task: Task, index: int, retries: Retries) -> list[Episode]:
        samplings = self._setup.samplings_of(
            index, num_siblings=self._num_samples, temperature=self._temperature
        )
        found = await self._completions(task, samplings, retries)
        return [
            episode_of(task, f"eval/{index}/{n}", result, self._setup.decode)
            for n, result in enumerate(found)
        ]

    async def _completions(
        self, task: Task, samplings: Sequence[Sampling], retries: Retries
    ) -> list[Completion | GraderFailure]:
        """One per sampling; another try has the same seed, so that it changes no result."""
        generate = self._setup.generation.generate
        missing = list(range(len(samplings)))
        found: dict[int, Completion | GraderFailure] = {}
        for tried in range(retries.most + 1):
            if tried:
                failures = failures_of([found[n] for n in missing])
                await retries.pause(tried, "generation (eval)", failures)
            requests = {n: generate(task.tokens, samplings[n]) for n in missing}
            found |= await outcomes(requests, timeout_s=None)
            missing = [n for n in missing if is_worth_retrying(found[n])]
            if not missing:
                break
        return [found[n] for n in range(len(samplings))]


def longest_grading_s(config: EvalConfig, grader: GraderConfig, max_retries: int) -> float:
    """How long grading may take without a token, even if every answer meets its time limit."""
    answers = config.num_tasks * config.samples_per_task
    tries = max_retries + 1
    return tries * answers * grader.timeout_s / grader.processes + pauses_s(max_retries)


def check_failures(per_task: Sequence[Sequence[Episode]], *, max_share: float) -> None:
    """Raise EvaluationError where too many answers failed."""
    failed = [[e for e in episodes if isinstance(e.reward, GraderFailure)] for episodes in per_task]
    total, num_tasks = sum(map(len, failed)), sum(map(bool, failed))
    answers = [episode for episodes in per_task for episode in episodes]
    is_empty = total > 0 and not any(isinstance(e.reward, Scored | Unscored) for e in answers)
    if is_empty or (num_tasks > 1 and total > max_share * len(answers)):
        raise EvaluationError(
            f"the evaluation failed: engine or grader broke at {total} of {len(answers)} answers, "
            f"of {num_tasks} tasks (last: {why_unscored([e for es in failed for e in es])}); a "
            f"share of {max_share} may fail, as in rollouts.max_failed_share. Mend the reward or "
            "the engine."
        )


def evaluation_metrics(
    per_task: Sequence[Sequence[Episode]], *, ks: Sequence[int] = ()
) -> dict[str, float]:
    """Accuracy with its interval, rewards, lengths; pass@k and majority vote where asked."""
    flat = [episode for episodes in per_task for episode in episodes]
    values = [e.reward.value for e in flat if isinstance(e.reward, Scored)]
    metrics: dict[str, float] = {}
    if values:
        correct = sum(value >= CORRECT for value in values)
        low, high = wilson_interval(correct, len(values))
        marks = [[_is_correct(episode) for episode in episodes] for episodes in per_task]
        over_tasks = mean_pass_at_k(marks, 1) if len(flat) > len(per_task) else None
        if over_tasks is not None:  # siblings aren't independent: the spread is that of tasks
            low, high = over_tasks.low, over_tasks.high
        metrics |= {
            "eval/accuracy": correct / len(values),
            "eval/accuracy_low": low,
            "eval/accuracy_high": high,
            "eval/mean_reward": fmean(values),
        }
    if flat:
        metrics |= {
            "eval/response_tokens_mean": fmean(e.num_response_tokens for e in flat),
            "eval/truncated_share": fmean(e.finish_reason == "length" for e in flat),
            "eval/scored_share": fmean(isinstance(e.reward, Scored) for e in flat),
            "eval/tasks": float(sum(_is_known(episodes) for episodes in per_task)),
        }
        metrics |= _missing_metrics("unscored", Unscored, flat)
        metrics |= _missing_metrics("failed", GraderFailure, flat)
    return metrics | _several_answers_metrics(per_task, ks=ks)


def _missing_metrics(name: str, kind: type, answers: Sequence[Episode]) -> dict[str, float]:
    """How many answers have no reward for one cause: count, share, and its interval."""
    count = sum(isinstance(episode.reward, kind) for episode in answers)
    low, high = wilson_interval(count, len(answers))
    return {
        f"eval/{name}": float(count),
        f"eval/{name}_share": count / len(answers),
        f"eval/{name}_share_low": low,
        f"eval/{name}_share_high": high,
    }


def _several_answers_metrics(
    per_task: Sequence[Sequence[Episode]], *, ks: Sequence[int]
) -> dict[str, float]:
    """pass@k for the `ks` asked for, and the majority vote where a task has several answers."""
    metrics: dict[str, float] = {}
    marks = [[_is_correct(episode) for episode in episodes] for episodes in per_task]
    for k in ks:
        estimate = mean_pass_at_k(marks, k)
        if estimate is not None:
            metrics[f"eval/pass_at_{k}"] = estimate.value
            metrics[f"eval/pass_at_low_{k}"] = estimate.low
            metrics[f"eval/pass_at_high_{k}"] = estimate.high
    if any(len(episodes) > 1 for episodes in per_task):
        votes = [vote for episodes in per_task if (vote := _vote(episodes)) is not None]
        if votes:
            metrics["eval/majority_vote"] = fmean(votes)
    return metrics


def _is_correct(episode: Episode) -> bool | None:
    reward = episode.reward
    return reward.value >= CORRECT if isinstance(reward, Scored) else None


def _is_known(episodes: Sequence[Episode]) -> bool:
    return any(_is_correct(episode) is not None for episode in episodes)


def _vote(episodes: Sequence[Episode]) -> bool | None:
    """Whether the most frequent graded response is correct; None where none was graded."""
    graded = {e.response.strip(): mark for e in episodes if (mark := _is_correct(e)) is not None}
    winner = majority_vote([e.response.strip() for e in episodes if e.response.strip() in graded])
    return None if winner is None else graded[winner]
