"""Gives out the next group: first those that a killed process left open, then new ones.

Every group given out has its line in the ledger. A group that the process before generated,
and that still fits the lag bound, comes with its episodes and isn't generated again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from parity.ledger.ledger import Ledger
from parity.ledger.recovery import InFlight, Recovery
from parity.tasks.stream import TaskStream
from parity.types import NO_VERSION, Group, Task


@dataclass(frozen=True, slots=True)
class Ticket:
    """One group to run."""

    index: int
    task: Task
    attempt: int  # how often the group was issued before
    recorded: Group | None = None  # its episodes, where an earlier process made them

    @property
    def oldest_version(self) -> int | None:
        """Of the recorded tokens; None where there are none, so the live version counts."""
        if self.recorded is None:
            return None
        return min(
            (v for e in self.recorded.episodes for v in e.versions if v != NO_VERSION), default=None
        )


class Issuer:
    """The order of groups of a run, over all of its processes."""

    def __init__(
        self,
        stream: TaskStream,
        ledger: Ledger,
        *,
        group_size: int,
        recovery: Recovery | None = None,
        reuses: bool = True,
    ) -> None:
        """Go on where `recovery` says.

        Args:
            reuses: False where the settings that made the recorded groups aren't those of now.
        """
        self._stream, self._ledger, self._size = stream, ledger, group_size
        self._again: list[InFlight] = [] if recovery is None else list(recovery.in_flight)
        self._reusable = {} if recovery is None or not reuses else dict(recovery.reusable)
        self._next = 0 if recovery is None else recovery.mark.next_group

    @property
    def position(self) -> int:
        """Where the task stream stands."""
        return self._stream.position

    @property
    def skipped(self) -> list[int]:
        """The tasks that the stream has passed over in this run, by index."""
        return self._stream.skipped

    def next(self) -> Ticket:
        """The next group, issued now."""
        if self._again:
            known = self._again.pop(0)
            index, position, is_new = known.index, known.task_position, False
            task, attempt = self._stream.at(position), known.attempt
        else:
            index, is_new, attempt = self._next, True, 0
            task = next(self._stream)
            position = self._stream.position - 1
            self._next += 1
        stored = self._reusable.pop(index, None)
        recorded = None if stored is None else stored.group(task)
        if recorded is not None and len(recorded.episodes) != self._size:
            recorded = None
        if is_new or recorded is None:
            epoch = self._stream.epoch_of(position)
            attempt = self._ledger.issued(
                index, task=task, position=position, epoch=epoch, size=self._size
            )
        if stored is not None and recorded is not None:
            self._ledger.reused(stored)
        return Ticket(index, task, attempt, recorded)

    def trained(
        self,
        step: int,
        *,
        version: int,
        groups: Sequence[Group],
        advantages: Sequence[Sequence[float]],
    ) -> None:
        """An optimizer step was taken on these groups, under the live `version`.

        Args:
            advantages: per group one per sibling; those without a reward aren't read.
        """
        rows = {
            group.index: [
                None if reward is None else advantage
                for reward, advantage in zip(group.rewards, row, strict=False)
            ]
            for group, row in zip(groups, advantages, strict=True)
        }
        self._ledger.trained(step, version=version, advantages=rows)
