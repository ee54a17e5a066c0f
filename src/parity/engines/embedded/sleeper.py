"""Puts the embedded engine to sleep and wakes it: what is given up, and what comes back.

Used by the engine, in its decoding thread between two tokens. `level` is what is given up now:
0 nothing, 1 keys and values, 2 the weights too. The second set of weights, which the next
publication fills, exists only while the engine is awake or a publication is under way.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import torch

from parity.engines.embedded.decoders.decoder import Decoder
from parity.engines.embedded.scheduler import Scheduler
from parity.engines.engine import SleepLevel
from parity.errors import EngineError
from parity.platforms.memory.resident import give_back
from parity.platforms.memory.shelf import FAULTS, Shelf


class Sleeper:
    """What the memory of one scheduler and its decoder is given up for."""

    def __init__(self, scheduler: Scheduler, decoder: Decoder, *, rest_dir: Path | None) -> None:
        """`rest_dir` is where weights of a CPU rest at level 2."""
        self._scheduler = scheduler
        self._decoder = decoder
        self._shelf = Shelf(decoder.device, folder=rest_dir)
        self.level = 0

    def sleep(self, level: SleepLevel) -> None:
        """Give up what `level` says; raises EngineError with nothing changed where that fails."""
        if level <= self.level:
            return
        if level == 2:
            try:
                self._shelf.put(self._decoder.served().values())
            except FAULTS as error:
                raise EngineError(
                    f"the engine can't sleep at level 2: its weights can't be put aside"
                    f" ({type(error).__name__}: {error}). It goes on as it was; make room where"
                    " they rest (the run folder on a CPU, the host's memory elsewhere), or sleep"
                    " at level 1."
                ) from error
        self._scheduler.sleep()
        self._decoder.drop_staged()
        self.level = level
        give_back(self._decoder.device)

    def wake(self) -> None:
        """Take everything back; raises EngineError, still asleep, where memory is short."""
        if self.level == 0:
            return
        try:
            self._shelf.take_back()
            self.level = 1
            with torch.inference_mode():
                self._scheduler.wake()
        except FAULTS as error:
            self._scheduler.sleep()  # what was computed before the memory ran out
            give_back(self._decoder.device)
            raise EngineError(
                f"the engine can't wake ({type(error).__name__}: {error}). It sleeps on and has"
                " lost nothing; free memory on its device and wake it again, or lower"
                " engine.max_concurrent."
            ) from error
        self.level = 0

    def serve(self, version: int) -> None:
        """Serve the staged weights, which take the place of resting ones."""
        self._scheduler.serve(version)
        if self.level:
            self._shelf.forget()
            self._decoder.drop_staged()
            self.level = 1
            give_back(self._decoder.device)

    def forget_staged(self) -> None:
        """A publication was given up; asleep, its memory goes too."""
        if self.level:
            self._decoder.drop_staged()
            give_back(self._decoder.device)

    def served(self, names: Collection[str]) -> Mapping[str, torch.Tensor]:
        """The served weights of these names, resting ones too."""
        served = self._decoder.served()
        return {name: self._shelf.value(served[name]) for name in names}

    def close(self) -> None:
        """Free what rests."""
        self._shelf.close()
