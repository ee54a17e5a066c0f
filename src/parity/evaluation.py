"""Evaluation: the same held-out tasks, sampled as asked, graded as in training.

Used during training, by `parity eval` and after SFT. An answer counts as correct when its
reward is at least 1; what could not be graded is left out of every mean and counted.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from parity.observe.statistics import majority_vote, mean_pass_at_k, wilson_interval
from parity.rollouts.group import EpisodeSetup, episode_of, grade_episodes
from parity.types import Episode, Group, Scored, Task

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
    ) -> None:
        self.tasks = tuple(tasks)
        self._setup = replace(setup, seed=setup.seed + SEED_OFFSET)
        self._temperature = temperature
        self._num_samples = samples_per_task

    async def run(self, *, ks: Sequence[int] = ()) -> Evaluation:
        """Evaluate now; the noise is the same at every call, so differences are the weights'."""
        per_task = await asyncio.gather(
            *(self._episodes(task, n) for n, task in enumerate(self.tasks))
        )
        flat = await grade_episodes(
            [episode for episodes in per_task for episode in episodes],
            self._setup.grader,
            max_retries=1,
            split="eval",
        )
        n = self._num_samples
        grouped = [flat[i : i + n] for i in range(0, len(flat), n)]
        return Evaluation(metrics=evaluation_metrics(grouped, ks=ks), episodes=tuple(flat))

    async def _episodes(self, task: Task, index: int) -> list[Episode]:
        samplings = self._setup.samplings_of(
            index, num_siblings=self._num_samples, temperature=self._temperature
        )
        completions = await asyncio.gather(
            *(self._setup.generation.generate(task.tokens, sampling) for sampling in samplings)
        )
        return [
            episode_of(task, f"eval/{index}/{n}", completion, self._setup.decode)
            for n, completion in enumerate(completions)
        ]


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
    return metrics | _several_answers_metrics(per_task, ks=ks)


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
