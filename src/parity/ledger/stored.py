"""Episodes and groups read back from a ledger: rows of the database with their payloads."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from parity.ledger.payload import EpisodePayload, decode_episode
from parity.ledger.schema import LedgerError
from parity.ledger.segments import Place, read_record
from parity.ledger.writer import Cell
from parity.types import (
    Episode,
    FinishReason,
    GraderFailure,
    Group,
    RewardResult,
    Scored,
    Task,
    Unscored,
)


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """One generated and scored episode; `place` is where its payload is."""

    dir: Path
    sibling: int
    sampling_attempt: int
    prompt_tokens: int
    sampled_tokens: int
    min_version: int | None
    max_version: int | None
    finish_reason: FinishReason
    place: Place
    reward: RewardResult
    is_generated_here: bool  # on the lineage that goes on, so it isn't recorded again
    is_scored_here: bool

    def payload(self) -> EpisodePayload:
        """Its tokens; raises LedgerError where they aren't as they were written."""
        return decode_episode(read_record(self.dir, self.place))


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """All siblings of a group that was finished, in sibling order."""

    index: int
    task_id: str
    task_position: int
    episodes: tuple[StoredEpisode, ...]

    def group(self, task: Task) -> Group | None:
        """The group as it was; None where `task`, drawn again, isn't the one it answers.

        Raises LedgerError where a payload is damaged.
        """
        payloads = [episode.payload() for episode in self.episodes]
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
                reward=episode.reward,
            )
            for payload, episode in zip(payloads, self.episodes, strict=True)
        ]
        return Group(task=task, episodes=tuple(episodes), index=self.index)

    def missing_rows(self, attempt: int) -> Iterator[tuple[str, tuple[Cell, ...]]]:
        """(table, cells after the time) of what the lineage doesn't hold yet."""
        for episode in self.episodes:
            own: tuple[Cell, ...] = (self.index, episode.sibling, attempt)
            place = episode.place
            if not episode.is_generated_here:
                yield (
                    "generated",
                    (
                        *own,
                        episode.sampling_attempt,
                        episode.prompt_tokens,
                        episode.sampled_tokens,
                        episode.min_version,
                        episode.max_version,
                        episode.finish_reason,
                        place.segment,
                        place.position,
                        place.size_bytes,
                        place.digest,
                    ),
                )
            if not episode.is_scored_here:
                yield "scored", (*own, *reward_cells(episode.reward))


def reward_cells(reward: RewardResult) -> tuple[str, float | None, str | None, str | None]:
    """outcome, value, parts and reason of a row in `scored`."""
    if isinstance(reward, Scored):
        parts = json.dumps(dict(reward.parts), sort_keys=True) if reward.parts else None
        return "scored", reward.value, parts, None
    outcome = "unscored" if isinstance(reward, Unscored) else "grader_failed"
    return outcome, None, None, reward.reason


def reward_of(row: Mapping[str, object] | sqlite3.Row) -> RewardResult:
    """Undo `reward_cells`."""
    outcome, reason = row["outcome"], str(row["reason"])
    if outcome == "scored":
        parts = cast("dict[str, float]", json.loads(str(row["parts"] or "{}")))
        return Scored(float(cast("float", row["value"])), parts)
    return Unscored(reason) if outcome == "unscored" else GraderFailure(reason)


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
