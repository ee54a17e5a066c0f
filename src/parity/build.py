"""From a resolved configuration to wired objects: the one place that knows every part.

Used by `launch.py` and driven by `loop.py`. `open_run` adds the training side to `parts.py`
and closes everything in the reverse order, whatever happened.
"""

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from parity import starts
from parity.algorithms.advantages.advantage import load_advantage
from parity.algorithms.losses.loss import load_loss
from parity.algorithms.objective import PolicyObjective
from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.errors import CheckpointError
from parity.folder import RunFolder
from parity.ledger.ledger import Ledger, Mark
from parity.ledger.recovery import Recovery, create_ledger, resume_ledger
from parity.ledger.schema import DATABASE
from parity.observe.advice import Advisor
from parity.observe.dashboard.display import Display
from parity.observe.timer import PhaseTimer
from parity.observe.tracking import Trackers
from parity.parts import Parts, load, open_parts
from parity.platforms.platform import Platform
from parity.rollouts.buffer import Buffer
from parity.rollouts.dump import EpisodeDump
from parity.rollouts.group import GroupRunner
from parity.rollouts.issuer import Issuer
from parity.rollouts.length_bias import LengthBias
from parity.run import Progress, Run, fingerprint
from parity.runtime.inline import InlineRuntime
from parity.runtime.runtime import Runtime
from parity.tasks.stream import TaskStream
from parity.training.checkpoint import Checkpoint, CheckpointStore
from parity.training.trainer import Trainer
from parity.types import Json
from parity.weights.direct import DirectTransfer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins."""

    checkpoint: Checkpoint | None = None  # None: at step 0
    reuses_groups: bool = True  # recorded groups that fit the lag bound may be trained


BEGINNING = Start()


@asynccontextmanager
async def open_run(
    config: TrainConfig,
    *,
    folder: RunFolder,
    platform: Platform,
    threads: ThreadPlan,
    display: Display,
    trackers: Trackers,
    start: Start = BEGINNING,
) -> AsyncGenerator[Run]:
    """A wired training run, at the beginning or where `start` says."""
    async with AsyncExitStack() as stack:
        checkpoint = start.checkpoint
        ledger, recovery = open_ledger(config, folder, checkpoint)
        stack.enter_context(ledger)
        runtime = InlineRuntime(trainer_threads=threads.trainer)
        stack.push_async_callback(runtime.close)
        device = platform.device(0)
        display.activity("loading the model")
        model, tokenizer = await asyncio.to_thread(load, config, device)
        trainer = await runtime.in_trainer(
            functools.partial(make_trainer, config, model, device=device)
        )
        progress = Progress()
        if checkpoint is not None:
            await runtime.in_trainer(lambda: trainer.load(checkpoint.path))
            progress = Progress.of(_mapping(checkpoint.state["progress"]))
        starts.note(
            folder.path, config, step=trainer.step_index, threads=threads, platform=platform.name
        )
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
            ledger=ledger,
            recovery=recovery,
            reuses=start.reuses_groups,
            progress=progress,
            display=display,
            trackers=trackers,
            dump=dump,
        )


def open_ledger(
    config: TrainConfig, folder: RunFolder, checkpoint: Checkpoint | None
) -> tuple[Ledger, Recovery | None]:
    """A new ledger, or the one of the run that goes on at `checkpoint` (None: its beginning)."""
    max_lag = config.rollouts.max_lag
    if checkpoint is None and not (folder.ledger_dir / DATABASE).exists():
        return create_ledger(folder.ledger_dir, max_lag=max_lag, config=config.ledger), None
    if checkpoint is None:  # killed before its first checkpoint: what it recorded still counts
        return resume_ledger(folder.ledger_dir, None, max_lag=max_lag, config=config.ledger)
    if "ledger" not in checkpoint.state:
        raise CheckpointError(
            f"{checkpoint.path} is of a version of Parity that kept no ledger; resume with that"
            " version, or start a new run from its weights (model.path)."
        )
    mark = Mark.of(checkpoint.state["ledger"])
    return resume_ledger(folder.ledger_dir, mark, max_lag=max_lag, config=config.ledger)


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
    ledger: Ledger,
    recovery: Recovery | None,
    reuses: bool,
    progress: Progress,
    display: Display,
    trackers: Trackers,
    dump: EpisodeDump,
) -> Run:
    """A run of started parts, standing at `progress`."""
    source, train_range = parts.train_tasks
    advantage = load_advantage(config.advantage.name)
    steps_left = config.steps - trainer.step_index
    lengths = LengthBias(
        ledger,
        capacity=config.rollouts.capacity,
        group_size=config.rollouts.group_size,
        state=progress.lengths,
    )
    stream = TaskStream(
        source,
        renderer=parts.renderer,
        prompts=config.prompts,
        seed=config.seed,
        first=train_range.start,
        last=train_range.stop,
        position=0 if recovery is None else recovery.mark.task_position,
    )
    return Run(
        config=config,
        folder=folder,
        parts=parts,
        trainer=trainer,
        buffer=Buffer(config.rollouts, steps=steps_left, version=progress.version),
        runner=GroupRunner(parts.setup, rollouts=config.rollouts, record=lengths),
        lengths=lengths,
        transfer=DirectTransfer([parts.engine], config.weights),
        runtime=runtime,
        checkpoints=CheckpointStore(folder.checkpoints_dir, config.checkpoint.keep),
        ledger=ledger,
        issuer=Issuer(
            stream, ledger, group_size=config.rollouts.group_size, recovery=recovery, reuses=reuses
        ),
        timer=PhaseTimer(),
        trackers=trackers,
        display=display,
        dump=dump,
        progress=progress,
        advantage=lambda rewards: advantage(rewards, config.advantage),
        advisor=Advisor(group_size=config.rollouts.group_size),
        saved_step=trainer.step_index or None,
    )


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
        correction=config.correction.beside(config.loss.old_logprobs),
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
