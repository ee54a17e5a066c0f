"""`inline`: one process; the trainer has a thread of its own with a pinned thread budget.

PyTorch's thread count is per calling thread, so the trainer's thread and the engine's
each set theirs once; side by side they must not want more than the cores at hand
(facts: two roles of two threads on two cores lose half of the throughput).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from parity.runtime.runtime import Runtime
from parity.supervise.waits import note, waiting

Result = TypeVar("Result")
_CLOSE_TIMEOUT_S = 600.0  # the step at hand ends within it


class InlineRuntime(Runtime):
    """Everything in this process."""

    def __init__(self, *, trainer_threads: int) -> None:
        self._trainer = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="trainer",
            initializer=torch.set_num_threads,
            initargs=(trainer_threads,),
        )

    async def in_trainer(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the trainer's thread."""

        def noted() -> Result:
            note("trainer", "took up a call")
            try:
                return work()
            finally:
                note("trainer", "ended a call")

        return await asyncio.get_running_loop().run_in_executor(self._trainer, noted)

    async def close(self) -> None:
        """Wait for the trainer's thread to end."""
        with waiting("driver", "the end of the trainer's thread", deadline_s=_CLOSE_TIMEOUT_S):
            await asyncio.to_thread(self._trainer.shutdown, wait=True, cancel_futures=True)
