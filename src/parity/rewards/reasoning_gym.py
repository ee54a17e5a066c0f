"""`reward.name=reasoning_gym`: the verifier that belongs to the task's own data set.

The task's columns say which: `dataset` (name), `settings` (options of the data set) and
`entry` (the record that the data set made: question, answer, metadata), as
`tasks/reasoning_gym.py` writes them. Another task is unscored.

Many verifiers give a wrong answer a little (0.01 for any text, 0.05 for the right form), and
the default one gives a share to a long answer that contains the right one. `exact_only`
counts everything below 1 as 0, so that only a right answer is worth anything.

A few verifiers evaluate the response as Python (`eval`, sympy). The grader process bounds
their time and memory and survives what they do to it, but it is no sandbox.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from reasoning_gym import create_dataset
from reasoning_gym.dataset import ProceduralDataset

from parity.rewards.config import TaskRewardConfig
from parity.rewards.reward import Reward, described, scored
from parity.types import Answer, GraderFailure, Json, RewardResult, Scored, Unscored

# Verifiers that compare with tuples, which the data of a task can't hold (JSON has lists).
_TUPLE_DATASETS = frozenset({"arc_agi", "rearc"})
# What a verifier raises over an answer that isn't in the form it reads.
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, SyntaxError)


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a task's columns say about where it comes from."""

    dataset: str
    settings: Mapping[str, Json]
    entry: Mapping[str, Json]


class ReasoningGymReward(Reward):
    """Asks the data set."""

    def __init__(self, config: TaskRewardConfig) -> None:
        self._config = config
        self._datasets: dict[tuple[str, str], ProceduralDataset] = {}

    def score(self, answer: Answer) -> RewardResult:
        """The verifier's score, or 1.0 and 0.0 with `exact_only`."""
        origin = _origin(answer.columns)
        if origin is None:
            return Unscored(
                "task has no reasoning-gym record (columns dataset, settings, entry);"
                " use tasks.name=reasoning_gym or another reward"
            )
        dataset = self._dataset(origin)
        entry = dict(origin.entry)
        if origin.dataset in _TUPLE_DATASETS:
            entry["metadata"] = _with_tuples(entry["metadata"])  # pyright: ignore[reportArgumentType]
        response = answer.response.strip() if self._config.strip else answer.response
        try:
            score = dataset.score_answer(response, entry)
        except _UNREADABLE as error:
            return _blame(dataset, entry, error)
        result = scored(score, {})
        if self._config.exact_only and result.value < 1.0:
            return Scored(0.0)
        return result

    def _dataset(self, origin: _Origin) -> ProceduralDataset:
        key = (origin.dataset, json.dumps(origin.settings, sort_keys=True))
        if key not in self._datasets:
            self._datasets[key] = create_dataset(origin.dataset, **origin.settings)
        return self._datasets[key]


def _origin(columns: Mapping[str, Json]) -> _Origin | None:
    dataset, settings, entry = (columns.get(key) for key in ("dataset", "settings", "entry"))
    if not isinstance(dataset, str) or not isinstance(entry, dict):
        return None
    return _Origin(dataset, settings if isinstance(settings, dict) else {}, entry)


def _blame(dataset: ProceduralDataset, entry: dict[str, Json], error: Exception) -> RewardResult:
    """Whose fault an exception of the verifier is.

    A verifier that accepts the task's own answer works, so the response wasn't in a form
    that it can read, which is a wrong answer. Otherwise nothing is known about the response.
    """
    own = entry.get("answer")
    try:
        works = own is not None and dataset.score_answer(own, entry) >= 1.0  # pyright: ignore[reportArgumentType]
    except _UNREADABLE:
        works = False
    if works:
        return Scored(0.0)
    return GraderFailure(
        f"the verifier raised {type(error).__name__}: {described(str(error))}", retryable=False
    )


def _with_tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    return value
