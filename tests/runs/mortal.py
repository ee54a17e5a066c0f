"""The command line in a process of its own that is killed at a chosen point, started fast.

A server that has imported Parity and torch forks each process in milliseconds. Used by the kill
and chaos tests.
"""

import functools
import importlib
import itertools
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parity.ledger.audit import audit
from parity.ledger.schema import DATABASE, reading
from parity.observe.summary import Summary
from parity.observe.trackers.jsonl import read_rows

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "parity.launch",
        "parity.cli.main",
        "parity.replay.replay",
        "parity.engines.embedded.engine",
        "parity.observe.trackers.jsonl",
        "parity.tasks.file",
        "torch.distributed.checkpoint",
        *(f"transformers.models.{name}.modeling_{name}" for name in ("qwen3", "llama")),
    ]
)
END_S = 240  # no process here may take longer, on a busy machine

# Where a process can be told to die: (what is called, before or after which call of it).
PLACES: Mapping[str, tuple[str, str]] = {
    "a group is generated": ("parity.ledger.ledger:Ledger.generated", "after"),
    "a group is scored": ("parity.ledger.ledger:Ledger.scored", "before"),
    "a group is admitted": ("parity.ledger.ledger:Ledger.admitted", "after"),
    "a group is issued": ("parity.ledger.ledger:Ledger.issued", "before"),
    "a payload is half written": ("parity.ledger.segments:SegmentFile.write", "half"),
    "a step is computed": ("parity.training.trainer:Trainer.step", "after"),
    "a step is recorded": ("parity.ledger.ledger:Ledger.trained", "after"),
    "weights are published": ("parity.weights.direct:DirectTransfer.publish", "before"),
    "a step is reported": ("parity.observe.trackers.jsonl:JsonlTracker.log", "before"),
    "the state is taken": ("parity.build:Run.state", "after"),
    "the ledger is flushed": ("parity.ledger.ledger:Ledger.flush", "after"),
    "the weights are saved": ("parity.training.state:save_model", "after"),
    "the checkpoint is sealed": ("parity.training.checkpoint:_seal", "after"),
    "the checkpoint is renamed": ("parity.ledger.ledger:Ledger.commit", "before"),
    "the checkpoint is committed": ("parity.ledger.ledger:Ledger.commit", "after"),
    "old checkpoints are pruned": ("parity.training.checkpoint:CheckpointStore._prune", "after"),
    "old payloads are retired": ("parity.ledger.ledger:Ledger.retire", "after"),
    "the model is exported": ("parity.training.trainer:Trainer.export", "before"),
    "the ledger is made": ("parity.ledger.recovery:define", "after"),
    "the ledger is forked": ("parity.ledger.recovery:_open_branch", "after"),
    "the ledger is recovered": ("parity.build:resume_ledger", "after"),
    "a checkpoint is loaded": ("parity.training.trainer:Trainer.load", "after"),
    "a group is reused": ("parity.ledger.ledger:Ledger.reused", "after"),
    "the tasks are read": ("parity.parts:read_tasks", "before"),
    "a request is sent": ("parity.rollouts.generation:Generation.generate", "before"),
    "an evaluation begins": ("parity.evaluation:Evaluator.run", "before"),
    "the trackers are closed": ("parity.observe.tracking:Trackers.finish", "before"),
}


@dataclass(frozen=True)
class Death:
    """Where a process dies: at the n-th call of a place, or after some seconds.

    With a `number` that it can catch, the signal is sent once and the process may go on.
    """

    place: str | None = None
    nth: int = 1
    after_s: float | None = None
    number: signal.Signals = signal.SIGKILL

    def arm(self) -> None:
        """In the process: make the place deadly."""
        if self.place is None:
            return
        path, when = PLACES[self.place]
        module, _, dotted = path.partition(":")
        *outer, name = dotted.split(".")
        owner = functools.reduce(getattr, outer, importlib.import_module(module))
        real, calls = getattr(owner, name), itertools.count(1)

        @functools.wraps(real)
        def deadly(*arguments, **options):
            is_last = next(calls) == self.nth
            if is_last and when == "half":
                whole = arguments[0]._gathered
                os.write(arguments[0]._descriptor, bytes(whole[: len(whole) // 2]))
            if is_last and when != "after":
                os.kill(os.getpid(), self.number)
            result = real(*arguments, **options)
            if is_last and when == "after":
                os.kill(os.getpid(), self.number)
            return result

        setattr(owner, name, deadly)


NEVER = Death()


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it said."""

    code: int  # negative: the signal
    said: str
    seconds: float


@dataclass
class Command:
    """`parity WORDS` in the folder `cwd`."""

    words: list[str]
    cwd: Path
    death: Death = NEVER
    most_file_bytes: int | None = None  # as on a full disk, for every file that it writes
    process: multiprocessing.process.BaseProcess = field(init=False)

    def start(self) -> "Command":
        self._said = self.cwd / f"said-{time.monotonic_ns()}.txt"
        self.process = FORKS.Process(
            target=run,
            args=(self.words, str(self.cwd), str(self._said), self.death, self.most_file_bytes),
        )
        self._began_s = time.monotonic()
        self.process.start()
        return self

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def end(self) -> Ended:
        """Wait for its end, and bring it where the death is one by time."""
        if self.death.after_s is not None:
            self.process.join(self.death.after_s)
            if self.process.exitcode is None:
                self.process.kill()
        self.process.join(END_S)
        seconds = time.monotonic() - self._began_s
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(10)
            raise AssertionError(f"{self.words} didn't end within {END_S} s: {self.said()}")
        return Ended(self.process.exitcode, self.said(), seconds)

    def said(self) -> str:
        return self._said.read_text() if self._said.exists() else ""


def run(words: list[str], cwd: str, said: str, death: Death, most_file_bytes: int | None) -> None:
    """The body of the process."""
    os.chdir(cwd)
    with Path(said).open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    import torch

    from parity.cli.main import main

    torch.set_num_threads(1)
    if most_file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails with EFBIG
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_file_bytes, most_file_bytes))
    death.arm()
    sys.exit(main(words))


def parity(*words: str, cwd: Path, death: Death = NEVER, **options) -> Ended:
    """Run `parity WORDS` to its end."""
    return Command(list(words), cwd, death, **options).start().end()


def words_of(tiny_dir: Path, tasks_path: Path, name: str, *more: str) -> list[str]:
    """`parity train` of a run of six steps and three checkpoints that takes two seconds."""
    return [
        *("train", "finetune", f"model.path={tiny_dir}", f"tasks.path={tasks_path}"),
        *("tasks.chat=false", "display=none", "trackers.names=[jsonl]", f"output.name={name}"),
        *("steps=6", "checkpoint.every_steps=2", "eval.num_tasks=2", "eval.every_steps=null"),
        *("reward.name=python", f"reward.function={Path(__file__).parent / 'graders.py'}:letters"),
        *("sampling.max_new_tokens=6", "prompts.max_prompt_tokens=16", "optimizer.lr=1e-2"),
        *("rollouts.groups_per_step=2", "rollouts.group_size=3", "schedule.shape=constant"),
        *more,
    ]


def assert_clean(folder: Path) -> None:
    """Every proof of `parity audit` holds."""
    found = audit(folder / "ledger")
    assert found.holds, [(p.name, p.faults) for p in found.proofs if not p.holds]


def assert_finished(folder: Path, *, steps: int = 6, groups_per_step: int = 2) -> None:
    """The run came to its end: each group trained once, in an unbroken row of steps."""
    assert_clean(folder)
    summary = Summary.read(folder)
    assert (summary.status, summary.steps) == ("finished", steps)
    assert (folder / "model" / "model.safetensors").is_file()
    found = audit(folder / "ledger").counts
    assert found is not None
    assert (found.issued, found.trained) == (steps * groups_per_step,) * 2
    with reading(folder / "ledger" / DATABASE) as connection:
        trained = connection.execute("SELECT group_index, step FROM surviving_trained").fetchall()
    assert sorted(group for group, _ in trained) == list(range(steps * groups_per_step))
    assert {step for _, step in trained} == set(range(1, steps + 1))
    rows = read_rows(folder / "metrics.jsonl")
    assert [int(row["step"] or 0) for row in rows if "train/loss" in row] == [*range(1, steps + 1)]


def untimed(folder: Path) -> list[dict[str, float | None]]:
    """The rows of metrics.jsonl without what depends on the clock or the process."""
    timed = ("time/", "buffer/", "device/")
    rows = read_rows(folder / "metrics.jsonl")
    return [
        {k: v for k, v in row.items() if not (k.startswith(timed) or k.endswith("_s"))}
        for row in rows
    ]
