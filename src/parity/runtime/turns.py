"""Trainer and engine on the same devices: one of them holds the memory, the other one rests.

    whose turn     engine                 trainer                    what happens
    engine's       awake                  at rest                    groups are generated
    trainer's      asleep (level 2)       loaded                     a step, a checkpoint
    in between     asleep; takes a new    weights loaded, the rest   a publication
                   version in its place   (moments) at rest

`TakingTurns` wraps any runtime. Whatever is run `in_trainer` takes the trainer's turn;
`engines_turn` gives it back. The loop publishes before that call, so the engine wakes straight into
the new version and never holds two sets of weights beside its cache. Invariant: the next turn
begins only when the other side has let go; an error leaves both as they say, and ends the run.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from parity.engines.engine import Engine
from parity.errors import UnsupportedError
from parity.platforms.memory.resident import held_bytes
from parity.runtime.runtime import Runtime
from parity.supervise.waits import waiting

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")
_LEVEL = 2


@runtime_checkable
class Rests(Protocol):
    """A trainer that can give its device up; both calls block and come `in_trainer`."""

    def offload(self, *, keeps_weights: bool = False) -> None:
        """Put moments and gradients aside, and the weights unless they are kept."""
        ...

    def reload(self) -> None:
        """Take back whatever is at rest."""
        ...


class Memory(Protocol):
    """What each side holds on the devices, of its processes the one that holds the most."""

    async def of_engines(self) -> int | None:
        """In bytes; None where no engine says it now."""
        ...

    def of_trainer(self) -> int:
        """In bytes; blocks, and comes `in_trainer`."""
        ...


class OwnMemory:
    """Both sides are in this process, which can't tell them apart."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device

    async def of_engines(self) -> int:
        """All that this process holds; on a CPU, what is resident."""
        return held_bytes(self._device)

    def of_trainer(self) -> int:
        """The same."""
        return held_bytes(self._device)


class TakingTurns(Runtime):
    """A runtime whose trainer and engines share devices; begins in nobody's turn."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        engines: Sequence[Engine],
        trainer: object,
        deadline_s: float,
        memory: Memory,
    ) -> None:
        """Whichever side is awake or loaded, `engines_turn` begins the turns.

        Args:
            runtime: where the trainer's work runs.
            engines: those that share the trainer's devices.
            trainer: the trainer, or the view of one.
            deadline_s: `supervise.step_timeout_s`, for one change of turns.
            memory: measures what each side holds at the end of its turn and after it.

        Raises UnsupportedError where one side can't let go.
        """
        sleepless = [type(e).__name__ for e in engines if not e.capabilities.can_sleep]
        if not isinstance(trainer, Rests):
            sleepless.append(type(trainer).__name__)
        if sleepless or not isinstance(trainer, Rests):
            raise UnsupportedError(
                f"placement.kind isn't 'apart', and {', '.join(sleepless)} can't give its device up"
                " for a while; set placement.kind=apart."
            )
        self._runtime = runtime
        self._engines = engines
        self._trainer = trainer
        self._deadline_s = deadline_s
        self._memory = memory
        self._is_engines_turn = False
        self._metrics: dict[str, float] = {}

    async def in_trainer(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the trainer's turn; afterwards only its weights are still loaded."""
        self._note("device/engine_turn_bytes", await self._memory.of_engines())
        began_s = time.monotonic()
        with self._changing("the engine to fall asleep"):
            for engine in self._engines:
                await engine.sleep(_LEVEL)
        self._is_engines_turn = False
        self._add("time/sleep_s", time.monotonic() - began_s)
        self._note("device/after_engine_turn_bytes", await self._memory.of_engines())
        return await self._runtime.in_trainer(partial(self._turn, work))

    async def engines_turn(self) -> dict[str, float]:
        """Wake the engines, if they sleep, and let the trainer rest; metrics since the last one."""
        if not self._is_engines_turn:
            await self._runtime.in_trainer(self._end_turn)
            began_s = time.monotonic()
            with self._changing("the engine to wake"):
                for engine in self._engines:
                    await engine.wake()
            self._is_engines_turn = True
            self._add("time/wake_s", time.monotonic() - began_s)
        metrics, self._metrics = self._metrics, {}
        return metrics

    async def close(self) -> None:
        """Close the wrapped runtime."""
        await self._runtime.close()

    def _turn(self, work: Callable[[], Result]) -> Result:
        """The whole turn, in the trainer's thread."""
        began_s = time.monotonic()
        self._trainer.reload()
        self._add("time/reload_s", time.monotonic() - began_s)
        result = work()
        self._note("device/trainer_turn_bytes", self._memory.of_trainer())
        self._rest(keeps_weights=True)
        return result

    def _end_turn(self) -> None:
        self._rest(keeps_weights=False)
        self._note("device/after_trainer_turn_bytes", self._memory.of_trainer())

    def _rest(self, *, keeps_weights: bool) -> None:
        began_s = time.monotonic()
        self._trainer.offload(keeps_weights=keeps_weights)
        self._add("time/offload_s", time.monotonic() - began_s)

    def _changing(self, what: str) -> AbstractContextManager[object]:
        return waiting(
            "driver",
            what,
            deadline_s=self._deadline_s,
            limit="supervise.step_timeout_s",
            hint="Memory moves between the device and where it rests: a slow or full disk, or a "
            "host that swaps, may be behind it.",
        )

    def _add(self, name: str, seconds: float) -> None:
        self._metrics[name] = self._metrics.get(name, 0.0) + seconds

    def _note(self, name: str, size_bytes: int | None) -> None:
        if size_bytes is not None:
            self._metrics[name] = float(size_bytes)
