"""From a resolved configuration to wired objects: the one place that knows every part.

Used by `launch.py` and driven by `loop.py`. `open_run` adds the training side to `parts.py`
and closes everything in the reverse order, whatever happened.
"""

import asyncio
import functools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field

import torch
from transformers import PreTrainedModel

from parity.algorithms.advantages.advantage import load_advantage
from parity.algorithms.losses.loss import load_loss
from parity.algorithms.objective import PolicyObjective
from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines.engine import Engine
from parity.errors import CheckpointError
from parity.folder import RunFolder
from parity.observe.advice import Advisor
from parity.observe.dashboard.display import Display
from parity.observe.later import Later
from parity.observe.timer import GENERATE, PhaseTimer
from parity.observe.tracking import Trackers
from parity.parts import Parts, load, open_parts
from parity.platforms.platform import Platform
from parity.rollouts.buffer import Buffer, Conservation, Dropped
from parity.rollouts.dump import EpisodeDump
from parity.rollouts.generation import Generation
from parity.rollouts.group import GroupRunner
from parity.runtime.inline import InlineRuntime
from parity.runtime.runtime import Runtime
from parity.tasks.source import TaskSource
from parity.tasks.stream import TaskStream
from parity.training.checkpoint import Checkpoint, CheckpointStore
from parity.training.trainer import Trainer
from parity.types import Group, Json, Task
from parity.weights.direct import DirectTransfer
from parity.weights.transfer import Transfer, Weights

log = logging.getLogger(__name__)


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
    open_groups: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @classmethod
    def of(cls, state: Mapping[str, Json]) -> "Progress":
        """Read back what `asdict` wrote into a checkpoint."""
        known = dict(state)
        pairs = known.pop("open_groups", [])
        try:
            progress = cls(**known)  # pyright: ignore[reportArgumentType]
            progress.open_groups = [(int(a), int(b)) for a, b in pairs]  # pyright: ignore
        except TypeError as error:
            raise CheckpointError(
                f"the checkpoint's progress can't be read ({error}); it is of another version of "
                "Parity. Resume with the version that wrote it."
            ) from error
        return progress


@dataclass(kw_only=True)
class Run:
    """A wired training run; `loop.py` drives it."""

    config: TrainConfig
    folder: RunFolder
    parts: Parts
    trainer: Trainer
    buffer: Buffer
    runner: GroupRunner
    transfer: Transfer
    runtime: Runtime
    checkpoints: CheckpointStore
    stream: TaskStream
    timer: PhaseTimer
    trackers: Trackers
    display: Display
    dump: EpisodeDump
    progress: Progress
    advantage: Callable[[torch.Tensor], torch.Tensor]
    advisor: Advisor
    reports: Later = field(default_factory=Later)
    started: float = field(default_factory=time.monotonic)
    saved_step: int | None = None  # of the newest checkpoint that this process wrote or read
    is_stopping: bool = False
    is_interrupted: bool = False  # by a signal, not by the clock
    stop_reason: str = "time_limit_s"
    _again: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _positions: dict[int, int] = field(default_factory=dict[int, int])  # of open groups
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

    def next_task(self) -> tuple[int, Task]:
        """The next group's index and task: first those that a killed process left open."""
        if self._again:
            index, position = self._again.pop(0)
            task = self.stream.at(position)
        else:
            index = self.progress.next_index
            task, position = self._draw()
            self.progress.next_index += 1
        self._positions[index] = position
        return index, task

    def _draw(self) -> tuple[Task, int]:
        """A fresh task, and the position from which it can be drawn again."""
        task = next(self.stream)
        return task, self.stream.position - 1

    async def run_group(self, task: Task, index: int) -> Group | Dropped:
        """One group; its rewards are shown as soon as they exist."""
        outcome = await self.runner.run(task, index)
        if isinstance(outcome, Dropped):
            self._positions.pop(index, None)
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
        return Weights(self.trainer.named_weights(), self.trainer.aliases())

    def state(self) -> dict[str, Json]:
        """What a checkpoint says beside weights and optimizer."""
        self.progress.open_groups = [*sorted(self._positions.items()), *self._again]
        progress = asdict(self.progress)
        progress["train_seconds"] = self.train_seconds
        progress["open_groups"] = [list(pair) for pair in self.progress.open_groups]
        return {
            "progress": progress,
            "position": self.stream.position,
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

    def forget(self, groups: list[Group]) -> None:
        """Trained groups are not open any more, so no checkpoint from now on holds them."""
        for group in groups:
            self._positions.pop(group.index, None)


@asynccontextmanager
async def open_run(
    config: TrainConfig,
    *,
    folder: RunFolder,
    platform: Platform,
    threads: ThreadPlan,
    display: Display,
    trackers: Trackers,
    checkpoint: Checkpoint | None = None,
) -> AsyncGenerator[Run]:
    """A wired training run, at the beginning or at `checkpoint`."""
    async with AsyncExitStack() as stack:
        runtime = InlineRuntime(trainer_threads=threads.trainer)
        stack.push_async_callback(runtime.close)
        device = platform.device(0)
        display.activity("loading the model")
        model, tokenizer = await asyncio.to_thread(load, config, device)
        trainer = await runtime.in_trainer(
            functools.partial(make_trainer, config, model, device=device)
        )
        progress = Progress()
        position = 0
        if checkpoint is not None:
            await runtime.in_trainer(lambda: trainer.load(checkpoint.path))
            progress = Progress.of(_mapping(checkpoint.state["progress"]))
            position = int(str(checkpoint.state["position"]))
        parts = await stack.enter_async_context(
            open_parts(
                config,
                platform=platform,
                threads=threads,
                display=display,
                model=(model, tokenizer),
                version=progress.version,
            )
        )
        if checkpoint is not None:
            warn_of_other_tasks(parts, checkpoint.state)
        dump = stack.enter_context(EpisodeDump(folder.episodes_dir))
        yield wire(
            config,
            parts,
            folder=folder,
            trainer=trainer,
            runtime=runtime,
            progress=progress,
            position=position,
            display=display,
            trackers=trackers,
            dump=dump,
        )


def warn_of_other_tasks(parts: Parts, state: Mapping[str, Json]) -> None:
    """Say that the tasks aren't those of the checkpoint: its position means other tasks now."""
    found = fingerprint(*parts.train_tasks)
    if state.get("tasks") not in (None, found):
        log.warning(
            "event=tasks_changed checkpoint=%s now=%s; the run goes on at the same position of "
            "other tasks, some of which may be held out for evaluation",
            state["tasks"],
            found,
        )


def wire(  # noqa: PLR0913 (the parts that open_run started, each once)
    config: TrainConfig,
    parts: Parts,
    *,
    folder: RunFolder,
    trainer: Trainer,
    runtime: Runtime,
    progress: Progress,
    position: int,
    display: Display,
    trackers: Trackers,
    dump: EpisodeDump,
) -> Run:
    """A run of started parts, standing at `progress`."""
    source, train_range = parts.train_tasks
    advantage = load_advantage(config.advantage.name)
    steps_left = config.steps - trainer.step_index
    return Run(
        config=config,
        folder=folder,
        parts=parts,
        trainer=trainer,
        buffer=Buffer(config.rollouts, steps=steps_left, version=progress.version),
        runner=GroupRunner(parts.setup, rollouts=config.rollouts),
        transfer=DirectTransfer([parts.engine]),
        runtime=runtime,
        checkpoints=CheckpointStore(folder.checkpoints_dir, config.checkpoint.keep),
        stream=TaskStream(
            source,
            renderer=parts.renderer,
            prompts=config.prompts,
            seed=config.seed,
            first=train_range.start,
            last=train_range.stop,
            position=position,
        ),
        timer=PhaseTimer(),
        trackers=trackers,
        display=display,
        dump=dump,
        progress=progress,
        advantage=lambda rewards: advantage(rewards, config.advantage),
        advisor=Advisor(group_size=config.rollouts.group_size),
        saved_step=trainer.step_index or None,
        _again=list(progress.open_groups),
    )


def fingerprint(source: TaskSource, indices: range) -> list[Json]:
    """What tells one task source from another: its size, and its first and last task."""
    ends = (source.task(indices.start), source.task(indices.stop - 1))
    return [source.size, *(task.task_id for task in ends)]


def make_trainer(
    config: TrainConfig,
    model: PreTrainedModel,
    *,
    device: torch.device,
) -> Trainer:
    """The trainer of the run file, taking over `model`."""
    objective = PolicyObjective(
        policy_loss=load_loss(config.loss.name),
        loss=config.loss,
        kl=config.kl,
        entropy=config.entropy,
        correction=config.correction,
    )
    return Trainer(
        model,
        objective=objective,
        optimizer=config.optimizer,
        schedule=config.schedule,
        config=config.trainer,
        total_steps=config.steps,
        temperature=config.sampling.temperature,
        device=device,
    )


def _mapping(value: Json) -> Mapping[str, Json]:
    assert isinstance(value, dict), f"expected an object in the checkpoint, found {value!r}"
    return value
