"""What a run left of its steps: the samples, the numbers, the weights. Reads, never writes.

Samples come from the ledger's payloads on the surviving lineage, numbers from metrics.jsonl,
weights from kept checkpoints and the export. Used by `replay.py`.
"""

import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from parity.errors import CheckpointError, DataError
from parity.folder import RunFolder
from parity.ledger.ledger import Mark
from parity.ledger.payload import EpisodePayload, decode_advantages, decode_group
from parity.ledger.schema import DATABASE, LedgerError, reading
from parity.ledger.segments import read_record
from parity.ledger.stored import require_place, rewards_of
from parity.observe.encode import loads
from parity.observe.summary import FILE_NAME as SUMMARY
from parity.observe.summary import Summary
from parity.starts import ProcessStart, start_of
from parity.training.checkpoint import Checkpoint, CheckpointStore
from parity.types import Sample, Scored

_GONE = "segment IS NULL OR segment IN (SELECT segment FROM segments WHERE retired_at IS NOT NULL)"
_LOST_STEPS = f"""
    SELECT step FROM surviving_steps WHERE {_GONE}
    UNION SELECT t.step FROM surviving_trained t
    JOIN surviving_generated g USING (group_index, attempt) WHERE {_GONE}"""
_GROUPS = """
    SELECT g.*, r.results FROM surviving_trained t
    JOIN surviving_generated g USING (group_index, attempt)
    JOIN surviving_scored r USING (group_index, attempt)
    WHERE t.step = ? ORDER BY g.group_index"""


class PayloadError(LedgerError):
    """What a step was trained on isn't as it was written."""


class Recorded:
    """The steps in one unchanging view of a ledger."""

    def __init__(self, connection: sqlite3.Connection, dir: Path) -> None:
        connection.row_factory = sqlite3.Row
        self._connection, self._dir = connection, dir

    @property
    def last_step(self) -> int:
        """The newest step of the surviving lineage; 0 before the first."""
        query = "SELECT COALESCE(MAX(step), 0) FROM surviving_steps"
        return int(self._connection.execute(query).fetchone()[0])

    def lost_steps(self) -> list[int]:
        """Steps of which a payload was removed by `ledger.payload_steps`, or never written."""
        return sorted(row[0] for row in self._connection.execute(_LOST_STEPS))

    def is_surviving(self, mark: Mark) -> bool:
        """Whether a checkpoint is of the lineage that goes on."""
        row = self._connection.execute(
            "SELECT EXISTS (SELECT 1 FROM lineage WHERE ? BETWEEN first_seq AND last_seq)",
            (mark.seq,),
        ).fetchone()
        return bool(row[0])

    def samples(self, step: int) -> list[Sample]:
        """What the trainer was given at a step, in that order.

        Raises PayloadError, which names the group, where it isn't what was written.
        """
        row = self._connection.execute(
            "SELECT * FROM surviving_steps WHERE step = ?", (step,)
        ).fetchone()
        advantages = self._advantages(step, row)
        groups = {each["group_index"]: each for each in self._connection.execute(_GROUPS, (step,))}
        if groups.keys() != advantages.keys():
            raise PayloadError(
                f"step {step}: the ledger names groups {sorted(groups)}, the step's payload"
                f" {sorted(advantages)}."
            )
        return [
            sample
            for group, values in advantages.items()
            for sample in self._samples(step, groups[group], values)
        ]

    def _advantages(self, step: int, row: sqlite3.Row) -> dict[int, tuple[float | None, ...]]:
        try:
            return decode_advantages(read_record(self._dir, require_place(row)))
        except LedgerError as error:
            raise PayloadError(f"step {step}: its advantages: {error}") from error

    def _samples(
        self, step: int, row: sqlite3.Row, values: Sequence[float | None]
    ) -> Iterator[Sample]:
        """Of one group, in sibling order."""
        group = row["group_index"]
        try:
            payloads = decode_group(read_record(self._dir, require_place(row)))
            rewards = rewards_of(row)
        except LedgerError as error:
            raise PayloadError(f"step {step}, group {group}: {error}") from error
        if not len(payloads) == len(rewards) == len(values):
            raise PayloadError(
                f"step {step}, group {group}: {len(payloads)} episodes, {len(rewards)} results and"
                f" {len(values)} advantages."
            )
        for sibling, (payload, reward, value) in enumerate(
            zip(payloads, rewards, values, strict=True)
        ):
            if not isinstance(reward, Scored):
                continue
            if value is None:
                raise PayloadError(
                    f"step {step}, episode {group}/{sibling} is scored and has no advantage."
                )
            if any(payload.loss_mask):
                yield _sample(group, payload, value)


def _sample(group: int, payload: EpisodePayload, advantage: float) -> Sample:
    return Sample(
        group=group,
        tokens=payload.tokens,
        loss_mask=payload.loss_mask,
        logprobs=payload.logprobs,
        versions=payload.versions,
        advantages=tuple(advantage if trained else 0.0 for trained in payload.loss_mask),
    )


@contextmanager
def recorded_steps(folder: RunFolder) -> Generator[Recorded]:
    """The steps of a run; raises LedgerError where its ledger can't be read."""
    with reading(folder.ledger_dir / DATABASE) as connection:
        yield Recorded(connection, folder.ledger_dir)


def recorded_numbers(
    folder: RunFolder, starts: Sequence[ProcessStart]
) -> dict[int, Mapping[str, float | None]]:
    """Step -> its metrics, of the process whose step survives; empty without metrics.jsonl."""
    found: dict[int, Mapping[str, float | None]] = {}
    if not folder.metrics_path.is_file():
        return found
    for line in folder.metrics_path.read_bytes().splitlines():
        try:
            row = loads(line)
        except DataError:  # torn by a kill
            continue
        if not isinstance(row, dict) or "train/loss" not in row:
            continue
        values = cast("dict[str, float]", row)
        step = int(values["step"])
        start = start_of(starts, step)
        if start is not None and values["unix_s"] >= start.unix_s - 0.001:  # it is rounded
            found[step] = values
    return found


def surviving_checkpoints(folder: RunFolder, recorded: Recorded) -> list[Checkpoint]:
    """The complete ones of the lineage that goes on, by step."""
    found: list[Checkpoint] = []
    for checkpoint in CheckpointStore(folder.checkpoints_dir, keep=1).complete():
        try:
            mark = Mark.of(checkpoint.state.get("ledger"))
        except CheckpointError:
            continue
        if recorded.is_surviving(mark):
            found.append(checkpoint)
    return found


@dataclass(frozen=True, slots=True)
class RecordedWeights:
    """Weights that the run wrote after a step."""

    label: str  # as users call them
    step: int
    path: Path  # a Hugging Face folder


def recorded_weights(
    folder: RunFolder, checkpoints: Sequence[Checkpoint], *, first: int, last: int
) -> list[RecordedWeights]:
    """Those after steps `first` to `last`, by step."""
    found = [
        RecordedWeights(f"the checkpoint of step {each.step}", each.step, each.path)
        for each in checkpoints
        if first <= each.step <= last
    ]
    step = exported_step(folder)
    if step is not None and first <= step <= last:
        found.append(RecordedWeights(f"the export of step {step}", step, folder.model_dir))
    return found


def exported_step(folder: RunFolder) -> int | None:
    """After which step `model/` was written; None where that isn't known."""
    if not (folder.path / SUMMARY).is_file() or not (folder.model_dir / "config.json").is_file():
        return None
    summary = Summary.read(folder.path)
    # A run that broke off has a summary all the same, but wrote no export.
    is_whole = summary.status == "finished" or (
        summary.status == "stopped" and summary.reason != "interrupted"
    )
    return summary.steps if is_whole else None
