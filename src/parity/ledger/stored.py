"""Episodes and groups read back from a ledger: rows of the database with their payloads."""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from parity.ledger.payload import EpisodePayload, Span, decode_group
from parity.ledger.schema import LedgerError
from parity.ledger.segments import Place, read_record
from parity.ledger.writer import Cell
from parity.types import Episode, GraderFailure, Group, Json, RewardResult, Scored, Task, Unscored

_json = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False).encode


class EpisodeFacts(NamedTuple):
    """What the row of a group says of one sibling, in this order."""

    sampling_attempt: int
    sampled_tokens: int
    min_version: int | None  # None: no token was sampled
    max_version: int | None
    finish_reason: str


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """All siblings of a group that was generated and scored, in sibling order."""

    dir: Path
    index: int
    task_id: str
    task_position: int
    prompt_tokens: int
    episodes: tuple[EpisodeFacts, ...]
    rewards: tuple[RewardResult, ...]
    place: Place  # of the payload
    is_generated_here: bool  # on the lineage that goes on, so it isn't recorded again
    is_scored_here: bool

    def payloads(self) -> tuple[EpisodePayload, ...]:
        """The tokens; raises LedgerError where they aren't as they were written."""
        return decode_group(read_record(self.dir, self.place))

    def group(self, task: Task) -> Group | None:
        """The group as it was; None where `task`, drawn again, isn't the one it answers.

        Raises LedgerError where a payload is damaged.
        """
        payloads = self.payloads()
        length = len(task.tokens)
        if task.task_id != self.task_id or any(p.tokens[:length] != task.tokens for p in payloads):
            return None
        episodes = [
            Episode(
                episode_id=payload.episode_id,
                task=task,
                tokens=payload.tokens,
                loss_mask=payload.loss_mask,
                logprobs=payload.logprobs,
                versions=payload.versions,
                response=payload.response,
                finish_reason=payload.finish_reason,
                reward=reward,
            )
            for payload, reward in zip(payloads, self.rewards, strict=True)
        ]
        return Group(task=task, episodes=tuple(episodes), index=self.index)

    def missing_rows(self, attempt: int) -> Iterator[tuple[str, tuple[Cell, ...]]]:
        """(table, cells after the time) of what the lineage doesn't hold yet."""
        own: tuple[Cell, ...] = (self.index, attempt)
        if not self.is_generated_here:
            at = self.place
            place = (at.segment, at.position, at.size_bytes, at.digest)
            yield "generated", (*own, self.prompt_tokens, _json(self.episodes), *place)
        if not self.is_scored_here:
            yield "scored", (*own, *results_cell(self.rewards))


def facts_cell(
    episodes: Sequence[Episode],
    sampling_attempts: Sequence[int],
    spans: Sequence[Span],
) -> tuple[str]:
    """The column `episodes` of a row in `generated`; `spans` are their oldest, newest versions."""
    facts = [
        (attempt, sum(episode.loss_mask), *span, episode.finish_reason)
        for episode, attempt, span in zip(episodes, sampling_attempts, spans, strict=True)
    ]
    return (orjson.dumps(facts).decode(),)


def facts_of(row: sqlite3.Row) -> tuple[EpisodeFacts, ...]:
    """Undo `facts_cell`; raises LedgerError where the column holds anything else."""
    try:
        return tuple(EpisodeFacts(*facts) for facts in json.loads(row["episodes"]))
    except (TypeError, ValueError) as error:
        raise LedgerError(f"event {row['seq']} doesn't say what was generated ({error})") from error


def results_cell(rewards: Sequence[RewardResult]) -> tuple[str]:
    """The column `results` of a row in `scored`: a number, or an object that says more."""
    numbers = [each.value for each in rewards if isinstance(each, Scored) and not each.parts]
    if len(numbers) == len(rewards) and math.isfinite(math.fsum(numbers)):
        return (orjson.dumps(numbers).decode(),)
    return (_json([_result(reward) for reward in rewards]),)


def _result(reward: RewardResult) -> Json:
    if isinstance(reward, Scored):
        if not reward.parts:
            return reward.value
        return {"outcome": "scored", "value": reward.value, "parts": dict(reward.parts)}
    return {"outcome": outcome_of(reward), "reason": reward.reason}


def outcome_of(reward: Unscored | GraderFailure) -> str:
    """The word for an answer without a value."""
    return "unscored" if isinstance(reward, Unscored) else "grader_failed"


def rewards_of(row: sqlite3.Row) -> tuple[RewardResult, ...]:
    """Undo `results_cell`; raises LedgerError where the column holds anything else."""
    try:
        return tuple(_reward(result) for result in json.loads(row["results"]))
    except (TypeError, ValueError) as error:
        raise LedgerError(f"event {row['seq']} doesn't say what was scored ({error})") from error


def _reward(result: Json) -> RewardResult:
    match result:
        case float() | int():
            return Scored(float(result))
        case {"outcome": "scored", "value": float() | int() as value, "parts": dict(parts)}:
            return Scored(float(value), {name: float(str(part)) for name, part in parts.items()})
        case {"outcome": "unscored", "reason": str(reason)}:
            return Unscored(reason)
        case {"outcome": "grader_failed", "reason": str(reason)}:
            return GraderFailure(reason)
        case _:
            raise ValueError(f"a result is {result!r}")


def place_of(row: sqlite3.Row) -> Place | None:
    """Where the payload of a row is; None where none was kept."""
    if row["segment"] is None:
        return None
    return Place(row["segment"], row["position"], row["size_bytes"], row["digest"])


def require_place(row: sqlite3.Row) -> Place:
    """Like `place_of`; raises LedgerError where none was kept."""
    place = place_of(row)
    if place is None:
        raise LedgerError(f"event {row['seq']} has no payload: ledger.payload_steps was 0.")
    return place
