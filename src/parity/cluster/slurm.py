"""A complete sbatch script for a run: directives, the values of this run, and `slurm.sh`.

Used by `parity launch slurm`. Everything that differs between runs is an assignment at the top,
quoted for the shell; the program below it is a file of its own, the same for every run.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from parity.cluster import directives
from parity.cluster.shape import Shape
from parity.config import recipes
from parity.config.schema import TrainConfig
from parity.errors import ConfigError

_INTERFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
# What Ray adds to `--temp-dir` for its longest socket, and the longest path of a socket.
_BELOW = len(
    "/parity-4294967295/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)
_LONGEST_SOCKET = 107


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What the run file doesn't say: the site's words, and how the job treats its end."""

    sbatch: Sequence[str] = ()  # NAME=VALUE, options of sbatch
    setup: Sequence[str] = ()  # lines of shell; empty: put this Python's programs on PATH
    grace_s: int = 300  # before the end of its time the job is told to stop
    requeue: bool = False  # whether the job is queued again when it was told to stop
    interface: str = ""  # network whose address the head takes; empty: the host name's
    temp_dir: str = "/tmp"  # short, of each node by itself

    def __post_init__(self) -> None:
        if self.interface and not _INTERFACE.fullmatch(self.interface):
            raise ConfigError(
                f"--interface is {self.interface!r}; it must be a network interface, as in ib0."
            )
        longest = _LONGEST_SOCKET - _BELOW
        if not self.temp_dir.startswith("/") or len(self.temp_dir.encode()) > longest:
            raise ConfigError(
                f"--temp-dir is {self.temp_dir!r}; it must be an absolute path of at most"
                f" {longest} bytes, because the paths of Ray's sockets begin with it."
            )


def script(
    config: TrainConfig,
    shape: Shape,
    *,
    recipe: str,
    overrides: Sequence[str],
    options: SlurmOptions,
    work_dir: Path,
) -> str:
    """The script; `work_dir` is where it runs, which relative paths of the run start from."""
    name = plain_name(recipes.read(recipe).name)
    given = directives.parse(options.sbatch)
    asked: dict[str, str | None] = {
        "job-name": name,
        "nodes": str(shape.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(shape.cpus),
        **directives.devices(given, count=shape.devices, resource=shape.device),
        "signal": f"B:TERM@{options.grace_s}",
        "requeue" if options.requeue else "no-requeue": None,
        "open-mode": "append",
        "output": "%x-%j.out",
    }
    if shape.memory_gib is not None:
        asked["mem"] = f"{shape.memory_gib}G"
    values = {
        "num_nodes": shape.nodes,
        "cpus_per_node": shape.cpus,
        "start_timeout_s": int(config.placement.start_timeout_s),
        "requeue": "yes" if options.requeue else "no",
        "interface": options.interface,
        "temp_dir": options.temp_dir.rstrip("/"),
        "work_dir": str(work_dir),
        "runs_dir": str(work_dir / config.output.dir),
        "run_name": config.output.name or "",
        "run_stem": name,
        "names_run": "no" if config.output.name else "yes",
    }
    return "\n".join(
        [
            "#!/bin/bash",
            *directives.lines({**asked, **given}),
            "#",
            "# Made by `parity launch slurm`; the placement of the run:",
            *(f"#   {line}" for line in shape.placed.lines()),
            "",
            *(f"{key}={shlex.quote(str(value))}" for key, value in values.items()),
            f"node_words=({shlex.join(shape.ray_words)})",
            f"train=({shlex.join(['train', recipe, *overrides])})",
            "set_up() {",
            *(options.setup or [_own_path()]),
            "}",
            "",
            resources.files("parity.cluster").joinpath("slurm.sh").read_text(encoding="utf-8"),
        ]
    )


def plain_name(text: str) -> str:
    """Letters, digits and `_.-` of a name, for names of jobs and of run folders."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip(".-") or "run"


def _own_path() -> str:
    """A line that finds `parity` and `ray` where they are for this process."""
    return f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
