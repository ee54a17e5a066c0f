"""The contract of a tracker: takes the metrics of a step somewhere.

A tracker may fail at any time without harm to the run: the caller catches, warns at a
limited rate and goes on. Values are finite floats or None (unknown), never a fake 0. A step
may be logged more than once (training, evaluation); a resumed run logs some steps again.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from parity.types import Json


class Tracker(ABC):
    """Takes metrics somewhere; built as `Tracker(run_dir, project, run_name)`."""

    def __init__(self, run_dir: Path, project: str, run_name: str) -> None:
        self.run_dir = run_dir
        self.project = project
        self.run_name = run_name

    @abstractmethod
    def start(self, config: Mapping[str, Json]) -> None:
        """Begin, or go on with, the run; raises UnsupportedError where its package is missing."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Take metrics of one step; must not wait for a network."""

    @abstractmethod
    def finish(self) -> None:
        """Flush and close."""
