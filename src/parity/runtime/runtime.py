"""The contract of a runtime: where the trainer's blocking work happens.

The driver's event loop must never block: everything that computes for long on behalf of
the trainer goes through `in_trainer`, one call at a time and in the order of the calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Runtime(ABC):
    """Runs the trainer's work beside the event loop."""

    @abstractmethod
    async def in_trainer(self, work: Callable[[], Result]) -> Result:
        """Run `work` where the trainer lives and return what it returns."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for the work that runs and free what the runtime holds."""
