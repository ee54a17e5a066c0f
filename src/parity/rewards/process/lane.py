"""One thread of the driver with its one grader process.

Used by `grader.py`. The thread takes answers from the queue, waits for the process, and
replaces the process when it had to be killed or died. Invariant: however the thread ends, its
process is gone and `ended` is set; if it ends by an error the queue has it, so nobody waits.
"""

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from parity.errors import ParityError, RewardError
from parity.rewards.process import wire
from parity.rewards.process.child import Child
from parity.rewards.process.queue import Batch, BatchQueue
from parity.types import GraderFailure, RewardResult

MAX_RESTARTS = 3  # times in a row that a new process may fail to come up

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LaneSetup:
    """What every process of a pool is started with."""

    process: wire.Setup
    timeout_s: float  # for one answer
    environment: Mapping[str, str]  # on top of the inherited one
    working_dir: Path


class Lane:
    """Grades what the queue holds."""

    def __init__(self, queue: BatchQueue, setup: LaneSetup) -> None:
        self._queue = queue
        self._setup = setup
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._is_stopped = False
        self.is_started = False
        self.ready: Future[None] = _uncancellable()  # the process has built the reward
        self.ended: Future[None] = _uncancellable()  # the thread is over, its process gone

    @property
    def pid(self) -> int | None:
        """The live process, if there is one."""
        with self._lock:
            return self._child.pid if self._child is not None and self._child.is_alive else None

    def start(self) -> None:
        """Begin; `ready` tells how it went."""
        self.is_started = True
        threading.Thread(target=self._run, name="parity-grader", daemon=True).start()

    def kill_child(self) -> None:
        """Kill the process, which ends what it is at; returns at once."""
        with self._lock:
            if self._child is not None:
                self._child.kill()

    def stop(self) -> None:
        """Kill the process and start no other; returns at once."""
        with self._lock:
            self._is_stopped = True
        self.kill_child()

    def _run(self) -> None:
        try:
            child = self._started()
            self.ready.set_result(None)
            while (work := self._queue.take(self)) is not None:
                if child.has_ended() or (work[0].is_alone and child.has_graded):
                    child = self._restarted(child)
                self._grade(child, *work)
                if child.has_ended():
                    child = self._restarted(child)
        except ParityError as error:
            self._fail(error)
        except Exception as error:  # the supervisor: a broken thread must not hang the run
            log.exception("grader.thread_broke")
            self._fail(RewardError(f"a grader thread broke: {type(error).__name__}: {error}"))
        finally:
            if self._child is not None:
                self._child.end()
            self.ended.set_result(None)

    def _grade(self, child: Child, batch: Batch, indices: list[int]) -> None:
        results: dict[int, RewardResult] = {}
        lines: dict[int, bytes] = {}
        for index in indices:
            try:
                lines[index] = wire.encode_answer(batch.answers[index])
            except (TypeError, ValueError, RecursionError) as error:
                reason = f"the task can't be sent to a grader process: {error}"
                results[index] = GraderFailure(reason, retryable=False)
        order = list(lines)
        graded = child.grade(list(lines.values()), self._setup.timeout_s)
        results.update(zip(order, graded, strict=False))
        is_wanted = self._queue.finish(self, results, order[len(graded) :])
        if is_wanted and graded and not child.is_alive:
            failed = batch.answers[order[len(graded) - 1]].task_id
            log.warning("grader.process_lost task_id=%s result=%s", failed, graded[-1])

    def _started(self) -> Child:
        try:
            child = Child(self._setup.environment, self._setup.working_dir)
        except OSError as error:
            raise RewardError(f"a grader process can't be started: {error}") from error
        with self._lock:
            self._child = child
            is_stopped = self._is_stopped
        if is_stopped:
            raise RewardError("the grader pool was closed")
        child.begin(self._setup.process)
        return child

    def _restarted(self, child: Child) -> Child:
        """Another process in place of a dead one."""
        child.end()
        for attempt in range(1, MAX_RESTARTS + 1):
            try:
                return self._started()
            except RewardError as error:
                with self._lock:
                    is_stopped = self._is_stopped
                if is_stopped or attempt == MAX_RESTARTS:
                    raise
                log.warning("grader.restart_failed attempt=%d reason=%s", attempt, error)
        raise AssertionError("the loop returns or raises")

    def _fail(self, error: ParityError) -> None:
        self._queue.fail(error)
        if not self.ready.done():
            self.ready.set_exception(error)


def _uncancellable() -> Future[None]:
    """A future whose awaiting side can be cancelled without cancelling it."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future
