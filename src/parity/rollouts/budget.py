"""The failure budget: how many of the newest episodes may fail before the run ends.

Used by `group.py`; kept in checkpoints. An episode is failed where engine or grader broke and
other tries didn't help. Invariant: each group is counted once, as it ended last, so a resumed
run that reuses or repeats a group counts what an unbroken run would.
"""

from collections import deque
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
        self._newest: deque[tuple[int, bool]] = deque(maxlen=BUDGET_EPISODES)  # group, is failed
        for index, failed, ended in [] if state is None else _read(state):
            self.note(index, failed=failed, ended=ended)

    def add(self, index: int, *, failed: int, ended: int, reason: str) -> None:
        """The episodes of a group ended; raises TrainingError when the budget is spent."""
        self.note(index, failed=failed, ended=ended)
        total, of = sum(is_failed for _, is_failed in self._newest), len(self._newest)
        if failed and of >= LEAST_EPISODES and total > self._max_share * of:
            raise TrainingError(
                f"{total} of the last {of} episodes failed (last: {reason}), more than "
                f"rollouts.max_failed_share={self._max_share} allows; mend the reward or the "
                "engine, or raise the share."
            )

    def note(self, index: int, *, failed: int, ended: int) -> None:
        """Count a group without judging: its failures are of an earlier process."""
        if any(known == index for known, _ in self._newest):
            kept = [entry for entry in self._newest if entry[0] != index]
            self._newest.clear()
            self._newest.extend(kept)
        self._newest.extend([(index, True)] * failed + [(index, False)] * (ended - failed))

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
