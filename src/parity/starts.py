"""`starts.jsonl` in the run folder: under what each process of a run computed.

One line per process, written before its first step and never changed: where it began, with
how many threads, on what, and by which configuration. A resume may change all of these, so the
steps of a run can be computed again only with the line of their own process. Used by
`build.py`, which writes, and by `replay/`.
"""

import os
import platform as platform_facts
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import cast

import torch

from parity.config.resolve import resolve, to_plain
from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.errors import DataError
from parity.observe.encode import dumps, loads
from parity.types import Json

FILE_NAME = "starts.jsonl"


@dataclass(frozen=True, kw_only=True)
class ProcessStart:
    """One process of a run, as it stood before its first step."""

    after_step: int  # optimizer steps taken before it
    unix_s: float
    pid: int
    trainer_threads: int
    platform: str
    software: Mapping[str, str]  # what numbers may depend on: name -> version
    config: Mapping[str, Json]

    @property
    def train_config(self) -> TrainConfig:
        """The configuration; raises ConfigError where this version of Parity doesn't know it."""
        return resolve(TrainConfig, self.config)


def note(
    run_dir: Path, config: TrainConfig, *, step: int, threads: ThreadPlan, platform: str
) -> None:
    """Add this process, which begins after `step` steps, and wait for the disk."""
    start = ProcessStart(
        after_step=step,
        unix_s=time.time(),
        pid=os.getpid(),
        trainer_threads=threads.trainer,
        platform=platform,
        software=software(),
        config=to_plain(config),
    )
    append(run_dir, start)


def software() -> dict[str, str]:
    """What the trainer's numbers may depend on beside the run file: name -> version."""
    return {
        "python": platform_facts.python_version(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "machine": platform_facts.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def append(run_dir: Path, start: ProcessStart) -> None:
    """Add a line and wait for the disk; a line that a killed process tore stays by itself."""
    path = run_dir / FILE_NAME
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(dumps(asdict(start)).encode("ascii") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read(run_dir: Path) -> list[ProcessStart]:
    """Every process of a run, in the order of their starts.

    A torn line is left out: its process was killed before it took a step. Raises DataError
    where there is no file.
    """
    path = run_dir / FILE_NAME
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(
            f"{path} can't be read ({error.strerror}); runs of an earlier version of Parity have "
            "none, so their steps can't be computed again."
        ) from error
    found: list[ProcessStart] = []
    for line in lines:
        try:
            found.append(ProcessStart(**cast("dict[str, Json]", loads(line))))  # pyright: ignore[reportArgumentType]
        except (DataError, TypeError):
            continue
    return found


def start_of(starts: Sequence[ProcessStart], step: int) -> ProcessStart | None:
    """The process that took a step of the surviving lineage: the last one that began before it."""
    return next((start for start in reversed(starts) if start.after_step < step), None)
