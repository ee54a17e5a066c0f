"""Batches of answers between the callers' event loops and the threads that grade.

`grader.py` puts and drops batches, `lane.py` takes answers and hands results back. Every
method may be called from any thread and holds one lock. Invariant: until a batch is dropped,
each of its answers is in exactly one place: to do, with a lane, or among the results.
"""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from parity.errors import ParityError
from parity.types import Answer, RewardResult

MAX_TAKE = 16  # answers given to a process at once; they wait where one of them hangs


class Killable(Protocol):
    """What works on a batch and can be stopped."""

    def kill_child(self) -> None:
        """End the work at hand; returns at once."""
        ...


@dataclass(eq=False)
class Batch:
    """One call of `grade`; its future belongs to `loop`."""

    answers: Sequence[Answer]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[RewardResult]]
    is_alone: bool = False  # each answer needs a process that has graded nothing
    results: dict[int, RewardResult] = field(default_factory=dict[int, RewardResult])
    todo: deque[int] = field(default_factory=deque[int])


class BatchQueue:
    """First come, first graded; a few answers of one batch at a time."""

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._changed = threading.Condition()
        self._waiting: deque[Batch] = deque()  # those with something to do
        self._num_waiting = 0  # answers to do
        self._open: set[Batch] = set()
        self._current: dict[Killable, Batch] = {}
        self._error: ParityError | None = None

    def put(self, batch: Batch) -> None:
        """Add a batch; raises the pool's error where it has one."""
        with self._changed:
            if self._error is not None:
                raise type(self._error)(str(self._error))
            self._open.add(batch)
            self._enqueue(batch, range(len(batch.answers)))

    def take(self, lane: Killable) -> tuple[Batch, list[int]] | None:
        """Wait for answers, by batch and index; None once the pool has failed or closed."""
        with self._changed:
            while self._error is None and not self._waiting:
                self._changed.wait()
            if self._error is not None:
                return None
            batch = self._waiting[0]
            # A fair share, so that a lone batch uses every process.
            most = 1 if batch.is_alone else MAX_TAKE
            share = min(most, math.ceil(self._num_waiting / self._num_lanes))
            indices = [batch.todo.popleft() for _ in range(min(share, len(batch.todo)))]
            if not batch.todo:
                self._waiting.popleft()
            self._num_waiting -= len(indices)
            self._current[lane] = batch
            return batch, indices

    def finish(
        self, lane: Killable, results: Mapping[int, RewardResult], rest: Sequence[int]
    ) -> bool:
        """Hand back what `take` gave: results by index, and the answers that weren't graded.

        False where the batch was dropped meanwhile.
        """
        with self._changed:
            batch = self._current.pop(lane)
            if batch not in self._open:
                return False
            batch.results.update(results)
            if rest:
                self._enqueue(batch, rest)
            if len(batch.results) == len(batch.answers):
                ordered = [batch.results[index] for index in range(len(batch.answers))]
                _resolve(batch, ordered)
            return True

    def drop(self, batch: Batch) -> None:
        """Forget a batch, finished or not, and stop the work on it."""
        with self._changed:
            self._open.discard(batch)
            if batch.todo:
                self._waiting.remove(batch)
                self._num_waiting -= len(batch.todo)
                batch.todo.clear()
            for lane, current in self._current.items():
                if current is batch:
                    lane.kill_child()

    def fail(self, error: ParityError) -> None:
        """End the pool: every call that waits raises the error, and so does every later one."""
        with self._changed:
            if self._error is None:
                self._error = error
            for batch in self._open:
                _resolve(batch, type(error)(str(error)))
            self._changed.notify_all()

    def _enqueue(self, batch: Batch, indices: Sequence[int]) -> None:
        """Put answers in front of the batch's others."""
        if not batch.todo:
            self._waiting.append(batch)
        batch.todo.extendleft(reversed(indices))
        self._num_waiting += len(indices)
        self._changed.notify_all()


def _resolve(batch: Batch, outcome: list[RewardResult] | ParityError) -> None:
    def settle() -> None:
        if batch.future.done():
            return
        if isinstance(outcome, ParityError):
            batch.future.set_exception(outcome)
        else:
            batch.future.set_result(outcome)

    with suppress(RuntimeError):  # the caller's loop is closed: nobody waits
        batch.loop.call_soon_threadsafe(settle)
