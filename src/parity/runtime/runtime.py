"""The contract of a runtime: where the trainer's blocking work happens.

The driver's event loop must never block: everything that computes for long on behalf of
the trainer goes through `in_trainer`, one call at a time and in the order of the calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from parity.types import Sample, StepReport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from parity.weights.transfer import Weights

Result = TypeVar("Result")


class TrainerView(Protocol):
    """The trainer as the driver sees it: here, or the ranks of other processes as one.

    Its calls block and come through `Runtime.in_trainer`; `weights` is for the transport alone.
    """

    step_index: int

    def step(self, samples: Sequence[Sample]) -> StepReport:
        """Take one optimizer step."""
        ...

    def weights(self) -> "Weights":
        """What there is to publish."""
        ...

    def save(self, path: Path) -> None:
        """Write everything that `load` needs into a folder."""
        ...

    def stage(self) -> Callable[[Path], None]:
        """Copy what `save` would write; the result writes it, in any thread."""
        ...

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        ...

    def export(self, path: Path, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Write a Hugging Face folder."""
        ...


class Runtime(ABC):
    """Runs the trainer's work beside the event loop."""

    @abstractmethod
    async def in_trainer(self, work: Callable[[], Result]) -> Result:
        """Run `work` where the trainer lives and return what it returns."""

    async def engines_turn(self) -> dict[str, float]:
        """Let the engines have the devices that they share with the trainer; metrics of turns.

        Called before anything is generated after `in_trainer`. Nothing is shared here.
        """
        return {}

    @abstractmethod
    async def close(self) -> None:
        """Wait for the work that runs and free what the runtime holds."""
