"""The run folder: one place that knows which file lies where.

config.yaml       the resolved configuration        metrics.jsonl   one line per step
run.json          recipe, kind, start, version      log.txt         what the logger said
episodes/         every episode, strict JSONL       summary.json    the end, in numbers
checkpoints/      complete training states          model/          Hugging Face export
ledger/           what became of every task         starts.jsonl    under what each process computed
"""

import contextlib
import fcntl
import json
from collections.abc import Generator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from parity.errors import ConfigError

RunKind = Literal["train", "sft", "eval"]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What `run.json` holds: written once, when the run is made."""

    recipe: str
    kind: RunKind
    started: str  # ISO 8601, local time
    parity_version: str


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The folder's name, by which users call the run."""
        return self.path.name

    @property
    def config_path(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def log_path(self) -> Path:
        """The log of the driver."""
        return self.path / "log.txt"

    @property
    def summary_path(self) -> Path:
        """The end of the run in numbers."""
        return self.path / "summary.json"

    @property
    def metrics_path(self) -> Path:
        """One JSON object per step."""
        return self.path / "metrics.jsonl"

    @property
    def episodes_dir(self) -> Path:
        """Dumped episodes, one file per step."""
        return self.path / "episodes"

    @property
    def ledger_dir(self) -> Path:
        """What became of every task."""
        return self.path / "ledger"

    @property
    def checkpoints_dir(self) -> Path:
        """Complete training states."""
        return self.path / "checkpoints"

    @property
    def model_dir(self) -> Path:
        """The Hugging Face export."""
        return self.path / "model"

    def info(self) -> RunInfo:
        """What the run was started as; raises ConfigError where this is no run folder."""
        try:
            return RunInfo(**json.loads((self.path / "run.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{self.path} is not a run folder ({error}); `parity runs` lists those there are."
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Keep the folder to this process; a second one is refused (ConfigError).

        The lock is the kernel's and ends with the process, however it ends.
        """
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"the run {self.name} is going on in another process; wait for its end, or "
                    "stop it with Ctrl-C first."
                ) from None
            yield

    @classmethod
    def create(cls, parent: Path, *, name: str | None, info: RunInfo) -> "RunFolder":
        """Make a new run folder; a name that exists is refused, a made-up one is made unique."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        wanted = name or f"{Path(info.recipe).stem}-{stamp}"
        for attempt in range(100):
            path = parent / (wanted if attempt == 0 else f"{wanted}-{attempt + 1}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if name is not None:
                    raise ConfigError(
                        f"output.name={name!r} exists already in {parent}; choose another name, "
                        f"or `parity resume {name}` to go on with it."
                    ) from None
                continue
            except OSError as error:
                raise ConfigError(
                    f"the run folder {path} can't be made ({error.strerror}); set output.dir."
                ) from error
            (path / "run.json").write_text(json.dumps(asdict(info), indent=2) + "\n")
            return cls(path)
        raise ConfigError(f"no free name for a run like {wanted!r} in {parent}.")
