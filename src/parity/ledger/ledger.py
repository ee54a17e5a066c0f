"""The ledger as the run's driver writes it: one call per event in the life of a group.

    issued -> generated -> scored -> admitted -> trained(step) -> committed
                                     \\-> ended: dropped(reason) | failed(reason)

Used by the loop, the buffer and the group runner; made by `recovery.create` or
`recovery.resume`. A call checks that the event can be true (nothing is trained twice, ended
twice or without having been issued; no token is older than the bound), queues it and
returns; LedgerError names the group and what was found. `flush` and `commit` wait for the
disk. Safe to call from several threads, one at a time per group.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TextIO

from parity.errors import CheckpointError
from parity.ledger.config import LedgerConfig
from parity.ledger.payload import Span, age_spans, encode_advantages, encode_group
from parity.ledger.retention import retire
from parity.ledger.schema import LedgerError
from parity.ledger.stored import StoredGroup, facts_cell, results_cell
from parity.ledger.writer import Event, Writer
from parity.types import Episode, Json, RewardResult, Scored, Task

Loss = Literal["dropped", "failed"]
TOKENS_PER_WEIGHT = 64  # so that long answers fill the writer's queue sooner


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a checkpoint stands; the driver stores it with the weights.

    `seq` is the ledger's last event at that moment, `task_position` what the task source goes
    on from, `next_group` the index of the next new group.
    """

    step: int = 0
    version: int = 0
    seq: int = 0
    task_position: int = 0
    next_group: int = 0

    def as_json(self) -> dict[str, Json]:
        """For the state of a checkpoint."""
        return dict(asdict(self))

    @classmethod
    def of(cls, found: Json) -> "Mark":
        """Read back `as_json`; raises CheckpointError for anything else."""
        names = ("step", "version", "seq", "task_position", "next_group")
        if not isinstance(found, dict) or {type(found.get(name)) for name in names} != {int}:
            raise CheckpointError(
                f"the checkpoint's place in the ledger can't be read ({found!r}); it must hold"
                f" {', '.join(names)}. Resume with the version of Parity that wrote it."
            )
        return cls(*(int(str(found[name])) for name in names))


@dataclass(slots=True)
class OpenGroup:
    """A group that was issued and hasn't ended: how far it came in its newest attempt."""

    size: int
    attempt: int
    is_inherited: bool = False  # from the process before, so it may be issued again
    is_admitted: bool = False
    spans: Sequence[Span] = ()  # per sibling, once they are generated
    scored: Sequence[bool] = ()  # whether there is a value, per sibling, once they are scored


@dataclass(frozen=True, slots=True)
class Counts:
    """Where every group is that was issued on the surviving lineage."""

    issued: int
    trained: int
    dropped: int
    failed: int

    @property
    def in_flight(self) -> int:
        """Issued and not ended."""
        return self.issued - self.trained - self.dropped - self.failed


class Ledger:
    """The events of one run; one process writes."""

    def __init__(  # noqa: PLR0913 (the state that recovery read, each once)
        self,
        dir: Path,
        config: LedgerConfig,
        *,
        lock_file: TextIO,
        max_age: int,
        counts: Counts,
        open_groups: Mapping[int, OpenGroup],
        next_group: int,
        last_step: int,
    ) -> None:
        """Go on from a state; `recovery.create` and `recovery.resume` know it."""
        self._dir, self._config, self._max_age = dir, config, max_age
        self._open = dict(open_groups)
        self._issued, self._trained = counts.issued, counts.trained
        self._lost: dict[Loss, int] = {"dropped": counts.dropped, "failed": counts.failed}
        self._next_group, self._last_step = next_group, last_step
        self._writer = Writer(dir, config, lock_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def counts(self) -> Counts:
        """Conservation by the events that were queued; the database says the same after `flush`."""
        return Counts(self._issued, self._trained, self._lost["dropped"], self._lost["failed"])

    def issued(self, group: int, *, task: Task, position: int, epoch: int, size: int) -> int:
        """A group begins; returns its attempt: how often it was issued before.

        A group that a resume found in flight may be issued once more; any other one only once,
        and new ones without a gap.

        Args:
            group: index in the order of issue.
            position: of the task in the stream, which gives the task again.
            size: number of sibling episodes.
        """
        before = self._open.get(group)
        if before is not None and not before.is_inherited:
            raise LedgerError(f"group {group} is issued a second time while it is in flight.")
        if before is None and group != self._next_group:
            raise LedgerError(
                f"group {group} is issued, but the next new one is {self._next_group}."
            )
        attempt = 0 if before is None else before.attempt + 1
        if before is None:
            self._issued += 1
            self._next_group += 1
        self._open[group] = OpenGroup(size, attempt)
        cells = (time.time(), group, task.task_id, position, epoch, attempt, size)
        self._writer.put([Event("issued", cells)])
        return attempt

    def generated(
        self, group: int, episodes: Sequence[Episode], *, sampling_attempts: Sequence[int] = ()
    ) -> None:
        """All siblings of a group have all their tokens; their rewards aren't looked at.

        Args:
            episodes: of one task, in sibling order.
            sampling_attempts: per sibling, of its sampling key (`keys.py`), so that it can be
                sampled again; empty: 0 for all.
        """
        known = self._known(group, len(episodes))
        if known.spans:
            raise LedgerError(f"group {group} is generated a second time.")
        episodes = tuple(episodes)
        known.spans = spans = age_spans(episodes)
        prompt = episodes[0].task.tokens
        attempts = tuple(sampling_attempts) or (0,) * known.size
        num_tokens = sum([len(episode.tokens) for episode in episodes])
        event = Event(
            "generated",
            (time.time(), group, known.attempt, len(prompt)),
            more=partial(facts_cell, episodes, attempts, spans),
            encode=partial(encode_group, episodes, prompt=prompt),
            weight=1 + num_tokens // TOKENS_PER_WEIGHT,
        )
        self._writer.put([event])

    def scored(self, group: int, rewards: Sequence[RewardResult]) -> None:
        """All siblings of a group have their final result: a value, or why there is none."""
        known = self._known(group, len(rewards))
        if not known.spans or known.scored:
            raise LedgerError(f"group {group} is scored twice, or before its tokens.")
        rewards = tuple(rewards)
        known.scored = [isinstance(reward, Scored) for reward in rewards]
        cells = (time.time(), group, known.attempt)
        self._writer.put([Event("scored", cells, more=partial(results_cell, rewards))])

    def reused(self, stored: StoredGroup) -> None:
        """A group that an earlier process generated stands for the group of that index.

        Its episodes become part of this lineage where they aren't yet; admit or end it next.
        """
        known = self._open.get(stored.index)
        if known is None:
            raise LedgerError(f"group {stored.index} is reused, but it isn't in flight.")
        now = time.time()
        events = [Event(t, (now, *cells)) for t, cells in stored.missing_rows(known.attempt)]
        known.spans = [(each.min_version, each.max_version) for each in stored.episodes]
        known.scored = [isinstance(reward, Scored) for reward in stored.rewards]
        known.is_inherited = False
        if events:
            self._writer.put(events)

    def admitted(self, group: int) -> None:
        """A finished group is kept for training; no event where it was admitted before a resume."""
        known = self._known(group)
        if not known.scored:
            raise LedgerError(f"group {group} is admitted before its episodes are scored.")
        if not known.is_admitted:
            known.is_admitted = True
            self._writer.put([Event("admitted", (time.time(), group, known.attempt))])

    def ended(self, group: int, outcome: Loss, *, reason: str, detail: str = "") -> None:
        """A group won't be trained; `reason` is one word to count by, `detail` says more."""
        known = self._known(group)
        if not reason:
            raise LedgerError(f"group {group} is {outcome} without a reason.")
        del self._open[group]
        self._lost[outcome] += 1
        cells = (time.time(), group, known.attempt, outcome, reason, detail)
        self._writer.put([Event("ended", cells)])

    def trained(
        self, step: int, *, version: int, advantages: Mapping[int, Sequence[float | None]]
    ) -> None:
        """One optimizer step was taken on these groups; all of its events appear together.

        Args:
            version: that was live when the step took its groups; ages are counted from it.
            advantages: per group, in the order of training, one per sibling (None: no reward).
        """
        if step != self._last_step + 1:
            raise LedgerError(f"step {step} is trained, but the last one was {self._last_step}.")
        known = {group: self._known(group) for group in advantages}
        for group, state in known.items():
            self._check_trainable(group, state, version)
        now = time.time()
        encode = partial(encode_advantages, tuple(advantages), list(advantages.values()))
        rows = [Event("steps", (now, step, version, len(known)), encode=encode)]
        rows += [Event("trained", (now, g, state.attempt, step)) for g, state in known.items()]
        for group in known:
            del self._open[group]
        self._last_step = step
        self._trained += len(known)
        self._writer.put(rows)

    def mark(self, *, version: int, task_position: int) -> Mark:
        """This moment, for a checkpoint: take it together with the rest of the state."""
        seq = self._writer.last_seq
        return Mark(self._last_step, version, seq, task_position, self._next_group)

    def flush(self, *, is_durable: bool = True, timeout_s: float | None = None) -> None:
        """Wait until all events so far are on the disk; call it before a checkpoint is published.

        Raises LedgerError where they can't be written, DeadlineError after `timeout_s`
        (None: ledger.max_wait_s).
        """
        self._writer.flush(is_durable=is_durable, timeout_s=timeout_s)

    def commit(self, mark: Mark) -> None:
        """The checkpoint of `mark` is published; waits until the disk has it, in one transaction.

        A crash before this call loses nothing: `recovery.resume` adds the row.
        """
        cells = (
            time.time(),
            mark.step,
            mark.version,
            mark.seq,
            mark.task_position,
            mark.next_group,
        )
        self._writer.put([Event("committed", cells)])
        self._writer.flush(is_durable=True)

    def retire(self, *, oldest_checkpoint_step: int) -> int:
        """Remove payload files that neither resume nor `ledger.payload_steps` needs; how many."""
        return retire(
            self._dir,
            oldest_checkpoint_step=oldest_checkpoint_step,
            last_step=self._last_step,
            payload_steps=self._config.payload_steps,
        )

    def close(self) -> None:
        """Write what is queued and let the files go; raises as `flush` does."""
        self._writer.close()

    def _known(self, group: int, num_episodes: int | None = None) -> OpenGroup:
        known = self._open.get(group)
        if known is None:
            raise LedgerError(f"group {group} isn't in flight: it was never issued, or has ended.")
        if known.is_inherited:
            raise LedgerError(f"group {group} was in flight before the resume; issue or reuse it.")
        if num_episodes not in (None, known.size):
            raise LedgerError(f"group {group} has {known.size} siblings, not {num_episodes}.")
        return known

    def _check_trainable(self, group: int, known: OpenGroup, version: int) -> None:
        if not known.is_admitted:
            raise LedgerError(f"group {group} is trained without having been admitted.")
        spans = zip(known.spans, known.scored, strict=True)
        versions = [v for span, has_value in spans if has_value for v in span if v is not None]
        if versions and not version - self._max_age <= min(versions) <= max(versions) <= version:
            raise LedgerError(
                f"group {group} has tokens of versions {min(versions)} to {max(versions)}, but"
                f" version {version} may train on {version - self._max_age} to {version} only."
            )
