"""A wired training run: its parts, where it stands, and what its checkpoints say.

Made by `build.py`, driven by `loop.py`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import torch

from parity.config.schema import TrainConfig
from parity.engines.engine import Engine
from parity.errors import CheckpointError
from parity.folder import RunFolder
from parity.ledger.ledger import Ledger
from parity.observe.advice import Advisor
from parity.observe.dashboard.display import Display
from parity.observe.devices import DeviceMetrics
from parity.observe.later import Later
from parity.observe.timer import GENERATE, PhaseTimer
from parity.observe.tracking import Trackers
from parity.parts import Parts
from parity.rollouts.buffer import Buffer, Conservation, Dropped
from parity.rollouts.dump import EpisodeDump
from parity.rollouts.generation import Generation
from parity.rollouts.group import GroupRunner
from parity.rollouts.issuer import Issuer, Ticket
from parity.rollouts.length_bias import LengthBias
from parity.runtime.runtime import Runtime, TrainerView
from parity.tasks.source import TaskSource
from parity.training.checkpoint import CheckpointStore
from parity.training.saving import Saving
from parity.types import Group, Json
from parity.weights.transfer import Transfer, Weights


@dataclass(slots=True)
class Progress:
    """The few numbers of a run that change; all of them are in every checkpoint."""

    version: int = 0
    next_index: int = 0  # of the next group
    eval_first: float | None = None
    eval_last: float | None = None
    last_eval_step: int | None = None
    moved_tokens: int = 0  # prompt and response tokens of trained groups
    train_seconds: float = 0.0  # of earlier processes of this run
    lengths: Json = None  # of the groups in the length monitor's window
    failures: Json = None  # of the newest episodes: the failure budget
    skipped: list[int] = field(default_factory=list[int])  # tasks passed over, which caps count

    @classmethod
    def of(cls, state: Mapping[str, Json]) -> "Progress":
        """Read back what `asdict` wrote into a checkpoint."""
        try:
            return cls(**state)  # pyright: ignore[reportArgumentType]
        except TypeError as error:
            raise CheckpointError(
                f"the checkpoint's progress can't be read ({error}); it is of another version of "
                "Parity. Resume with the version that wrote it."
            ) from error


@dataclass(kw_only=True)
class Run:
    """A wired training run; `loop.py` drives it."""

    config: TrainConfig
    folder: RunFolder
    parts: Parts
    trainer: TrainerView
    buffer: Buffer
    runner: GroupRunner
    lengths: LengthBias
    transfer: Transfer
    runtime: Runtime
    checkpoints: CheckpointStore
    ledger: Ledger
    issuer: Issuer
    timer: PhaseTimer
    trackers: Trackers
    display: Display
    dump: EpisodeDump
    progress: Progress
    advantage: Callable[[torch.Tensor], torch.Tensor]
    advisor: Advisor
    reports: Later = field(default_factory=Later)
    started: float = field(default_factory=time.monotonic)
    devices: DeviceMetrics | None = None  # set by whoever knows which devices are the run's
    saving: Saving = field(default_factory=Saving)
    saved_step: int | None = None  # of the newest checkpoint that this process wrote or read
    is_stopping: bool = False
    is_interrupted: bool = False  # by a signal, not by the clock
    stop_reason: str = "time_limit_s"
    _busy_s: float = 0.0
    _dropped: int = 0
    _sums: dict[str, float] = field(default_factory=lambda: {"reward": 0.0, "count": 0.0})

    @property
    def engine(self) -> Engine:
        """What generates."""
        return self.parts.engine

    @property
    def generation(self) -> Generation:
        """The way to the engine."""
        return self.parts.setup.generation

    def should_stop(self) -> bool:
        """Whether the user or the clock asked for an early end; only right after a publication."""
        if self.trainer.step_index % self.config.rollouts.steps_per_publish:
            return False
        limit = self.config.time_limit_s
        if limit is not None and time.monotonic() - self.started >= limit:
            self.is_stopping = True
        return self.is_stopping

    async def run_group(self, ticket: Ticket) -> Group | Dropped:
        """One group; its rewards are shown as soon as they exist."""
        if ticket.recorded is not None:
            self.lengths.reused(ticket.recorded)
        outcome = await self.runner.run(
            ticket.task, ticket.index, attempt=ticket.attempt, recorded=ticket.recorded
        )
        if isinstance(outcome, Group) and self.trainer.step_index == 0:
            values = [value for value in outcome.rewards if value is not None]
            self._sums["reward"] += sum(values)
            self._sums["count"] += len(values)
            if self._sums["count"]:
                mean = self._sums["reward"] / self._sums["count"]
                self.display.rewards_so_far(mean, int(self._sums["count"]))
        return outcome

    def weights(self) -> Weights:
        """What the trainer holds now."""
        return self.trainer.weights()

    def state(self) -> dict[str, Json]:
        """What a checkpoint says beside weights and optimizer."""
        self.progress.lengths = self.lengths.state()
        self.progress.failures = self.runner.budget.state()
        self.progress.skipped = self.issuer.skipped
        progress = asdict(self.progress)
        progress["train_seconds"] = self.train_seconds
        mark = self.ledger.mark(version=self.progress.version, task_position=self.issuer.position)
        return {
            "progress": progress,
            "ledger": mark.as_json(),
            "tasks": fingerprint(*self.parts.train_tasks),
        }

    def newly_dropped(self, counts: Conservation) -> int:
        """Groups dropped since the last call."""
        total = sum(counts.dropped.values())
        new, self._dropped = total - self._dropped, total
        return new

    @property
    def train_seconds(self) -> float:
        """Wall-clock seconds of training, over all processes of the run."""
        return self.progress.train_seconds + time.monotonic() - self.started

    def time_metrics(self, groups: list[Group]) -> dict[str, float]:
        """Where the step's time went, and how fast tokens moved."""
        busy_s = self.engine.stats().busy_s
        self.timer.add(GENERATE, max(0.0, busy_s - self._busy_s))
        self._busy_s = busy_s
        times = self.timer.step()
        sampled = sum(e.num_response_tokens for g in groups for e in g.episodes)
        prompts = sum(len(group.task.tokens) * len(group.episodes) for group in groups)
        self.progress.moved_tokens += sampled + prompts
        metrics = {name: value for name, value in times.metrics().items() if value is not None}
        if times.elapsed_s > 0:
            metrics["rollout/tokens_per_s"] = sampled / times.elapsed_s
            metrics["time/tokens_per_s"] = (sampled + prompts) / times.elapsed_s
        return metrics


def fingerprint(source: TaskSource, indices: range) -> list[Json]:
    """What tells one task source from another: its size, and its first and last task."""
    ends = (source.task(indices.start), source.task(indices.stop - 1))
    return [source.size, *(task.task_id for task in ends)]
