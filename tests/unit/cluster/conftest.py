"""A Slurm of our own: stand-ins on PATH that log what they are told and start local processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from parity.cluster.shape import shape_of
from parity.cluster.slurm import SlurmOptions, script
from parity.config.compose import load_train

PROGRAMS = Path(__file__).parent / "programs"
NODES = ("n1", "n2", "n3")
WORDS = ("runtime=ray", "platform=cpu", "placement.trainer_ranks=3")


@dataclass
class Job:
    """One job of the stand-in: where it runs, under which variables, and what it left."""

    dir: Path
    variables: dict[str, str] = field(default_factory=dict)
    job_id: int = 0

    def start(self, text: str) -> "subprocess.Popen[str]":
        path = self.dir / "job.sbatch"
        path.write_text(text)
        return subprocess.Popen(
            ["bash", str(path)],
            cwd=self.dir,
            env={**os.environ, **self.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str, *, timeout_s: float = 240) -> tuple[int, str]:
        """(exit code, what was said)."""
        process = self.start(text)
        try:
            said, _ = process.communicate(timeout=timeout_s)
        finally:
            end(process)
        return process.returncode, said

    @property
    def log(self) -> list[str]:
        path = self.dir / "log"
        return path.read_text().splitlines() if path.is_file() else []

    def wait_for(self, begin: str, *, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not any(line.startswith(begin) for line in self.log):
            assert time.monotonic() < deadline, (begin, self.log)
            time.sleep(0.05)


def end(process: "subprocess.Popen[str]") -> None:
    """Kill what is left of a job; its processes are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    number = os.getpid()
    return Job(
        tmp_path,
        {
            "SLURM_JOB_ID": str(number),
            "SLURM_JOB_NODELIST": ",".join(NODES),
            "FAKE_DIR": str(tmp_path),
            "FAKE_PYTHON": sys.executable,
        },
        number,
    )


Render = Callable[..., str]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Makes the script of a three-node run whose programs are the stand-ins."""

    def make(*words: str, setup: Sequence[str] = (), **options: object) -> str:
        words = (*WORDS, "placement.nodes=3", "placement.engine_replicas=1", *words)
        config = load_train("quickstart", words)
        chosen = SlurmOptions(
            setup=[f"export PATH={PROGRAMS}:$PATH", *setup],
            temp_dir="/tmp",
            **{"interface": "lo", **options},  # pyright: ignore
        )
        return script(
            config,
            shape_of(config),
            recipe="quickstart",
            overrides=words,
            options=chosen,
            work_dir=tmp_path,
        )

    return make
