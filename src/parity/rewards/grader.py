"""Grades answers in processes of their own: the event loop awaits, threads do the waiting.

who       does                                          waits for
caller    `grade(answers)` in an event loop             one result per answer, in that order
lane      one thread with one grader process; takes a   answers in the queue; then each result,
          few answers of one batch at a time            for at most `grader.timeout_s`

Used by `rollouts/`. Invariants: a call returns exactly one result per answer or raises; an
answer that hangs or kills its process costs no other answer; no grader process outlives the
pool or the driver, however they end. What a result means:

reward returned a value or a reason              Scored or Unscored
reward raised OSError (network, files)           GraderFailure, retryable
reward raised something else, broke its contract GraderFailure, not retryable
answer passed `timeout_s`, process was killed    GraderFailure, retryable, process lost
process crashed, was killed or wrote nonsense    GraderFailure, retryable, process lost

Where a process was lost, the answer at hand needn't be the guilty one: an answer before it may
have left a thread or a signal behind. So its caller has it graded again with `alone`.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from parity.errors import RewardError
from parity.rewards import section
from parity.rewards.config import GraderConfig, RewardConfig
from parity.rewards.process import wire
from parity.rewards.process.lane import Lane, LaneSetup
from parity.rewards.process.queue import Batch, BatchQueue
from parity.types import Answer, Json, RewardResult

# A grader process is one thread of work; `grader.processes` is how to use more cores.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_CLOSE_TIMEOUT_S = 15.0


class GraderPool:
    """The grader processes of a run; an asynchronous context manager."""

    def __init__(
        self,
        reward_config: RewardConfig | Mapping[str, Json],
        grader: GraderConfig,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` is set in the processes, over ONE_THREAD and what they inherit.

        They run in the present working directory, which is first on their import path.
        """
        working_dir = Path.cwd()
        process = wire.Setup(
            section=section.plain(reward_config),
            parent_pid=os.getpid(),
            import_paths=(str(working_dir), *(path for path in sys.path if path)),
            memory_mib=grader.memory_mib,
            max_children=grader.max_children,
        )
        setup = LaneSetup(
            process=process,
            timeout_s=grader.timeout_s,
            environment={**ONE_THREAD, **(environment or {})},
            working_dir=working_dir,
        )
        self._queue = BatchQueue(grader.processes)
        self._lanes = [Lane(self._queue, setup) for _ in range(grader.processes)]
        self._is_running = False

    async def __aenter__(self) -> "GraderPool":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def pids(self) -> list[int]:
        """The live wardens of the grader processes; each leads a session of the same number."""
        return [pid for lane in self._lanes if (pid := lane.pid) is not None]

    async def start(self) -> None:
        """Start every process and wait until each has built the reward; once.

        Raises ConfigError, UnsupportedError or RewardError where it can't be built.
        """
        try:
            for lane in self._lanes:
                lane.start()
            await asyncio.gather(*(asyncio.wrap_future(lane.ready) for lane in self._lanes))
            self._is_running = True
        finally:
            if not self._is_running:
                await self.close()

    async def grade(self, answers: Sequence[Answer], *, alone: bool = False) -> list[RewardResult]:
        """One result per answer, in the order of the answers.

        An answer's time runs from when a process may begin with it; waiting for a free process
        doesn't count. `alone`: each is graded in a process that has graded nothing before it.
        Cancelling stops the work. Raises RewardError where the pool isn't
        running or can't start processes any more.
        """
        if not self._is_running:
            raise RewardError("grade was called on a grader pool that isn't running; start it.")
        if not answers:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[RewardResult]] = loop.create_future()
        batch = Batch(answers=tuple(answers), loop=loop, future=future, is_alone=alone)
        self._queue.put(batch)
        try:
            return await batch.future
        finally:
            self._queue.drop(batch)

    async def close(self) -> None:
        """Kill every process; calls of `grade` that still wait raise RewardError."""
        self._is_running = False
        self._queue.fail(RewardError("the grader pool was closed"))
        for lane in self._lanes:
            lane.stop()
        ended = [asyncio.wrap_future(lane.ended) for lane in self._lanes if lane.is_started]
        if ended:
            _, late = await asyncio.wait(ended, timeout=_CLOSE_TIMEOUT_S)
            assert not late, "a grader thread didn't end although its process was killed"
