"""The failure budget: how many of the newest episodes may fail before the run ends.

Used by `group.py`; kept in checkpoints. An episode is failed where engine or grader broke and
other tries didn't help. Invariant: each group is counted once, as it ended last, so a resumed
run that reuses or repeats a group counts what an unbroken run would.
"""

from collections import Counter, deque
from itertools import groupby

from parity.errors import CheckpointError, TrainingError
from parity.types import Json

BUDGET_EPISODES = 1000  # the newest ones, over which the share of failures is taken
LEAST_EPISODES = 100  # below it no share is judged


class FailureBudget:
    """The share of episodes that may fail, among the newest ones; the run ends above it."""

    def __init__(self, max_share: float, *, state: Json = None) -> None:
        """`state` is of a checkpoint."""
        self._max_share = max_share
        self._newest: deque[tuple[int, bool]] = deque()  # group, is failed
        self._ended = Counter[int]()  # by group, among the newest
        self._num_failed = 0  # among the newest
        for index, failed, ended in [] if state is None else _read(state):
            self.note(index, failed=failed, ended=ended)

    def add(self, index: int, *, failed: int, ended: int, reason: str) -> None:
        """The episodes of a group ended; raises TrainingError when the budget is spent."""
        self.note(index, failed=failed, ended=ended)
        total, of = self._num_failed, len(self._newest)
        if failed and of >= LEAST_EPISODES and total > self._max_share * of:
            raise TrainingError(
                f"{total} of the last {of} episodes failed (last: {reason}), more than "
                f"rollouts.max_failed_share={self._max_share} allows; mend the reward or the "
                "engine, or raise the share."
            )

    def note(self, index: int, *, failed: int, ended: int) -> None:
        """Count a group without judging: its failures are of an earlier process."""
        if index in self._ended:
            again = [entry for entry in self._newest if entry[0] == index]
            self._newest = deque(entry for entry in self._newest if entry[0] != index)
            self._forget(again)
        self._newest.extend([(index, True)] * failed + [(index, False)] * (ended - failed))
        if ended:
            self._ended[index] += ended
        self._num_failed += failed
        excess = len(self._newest) - BUDGET_EPISODES
        self._forget([self._newest.popleft() for _ in range(excess)])

    def _forget(self, entries: list[tuple[int, bool]]) -> None:
        """Take back the counts of episodes that aren't among the newest any more."""
        for index, is_failed in entries:
            self._num_failed -= is_failed
            self._ended[index] -= 1
            if not self._ended[index]:
                del self._ended[index]

    def state(self) -> Json:
        """Index, failed and ended episodes per group, for a checkpoint."""
        groups = ((index, list(found)) for index, found in groupby(self._newest, lambda e: e[0]))
        return [[index, sum(failed for _, failed in found), len(found)] for index, found in groups]


def _read(state: Json) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for group in state if isinstance(state, list) else [state]:
        match group:
            case [int(index), int(failed), int(ended)]:
                found.append((index, failed, ended))
            case _:
                raise CheckpointError(
                    f"the checkpoint's failure budget holds {group!r}; it must be group, failed and"
                    " ended episodes. Resume with the version of Parity that wrote it."
                )
    return found
