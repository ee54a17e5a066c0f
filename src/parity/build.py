"""From a resolved configuration to wired objects: the one place that knows every part.

Used by `launch.py` and driven by `loop.py`. `open_run` adds the training side to `parts.py`
and closes everything in the reverse order, whatever happened.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from parity import starts
from parity.algorithms.advantages.advantage import load_advantage
from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines.engine import Engine
from parity.errors import CheckpointError, UnsupportedError
from parity.folder import RunFolder
from parity.ledger.ledger import Ledger, Mark
from parity.ledger.recovery import Recovery, create_ledger, resume_ledger
from parity.ledger.schema import DATABASE
from parity.observe.advice import Advisor
from parity.observe.dashboard.display import Display
from parity.observe.timer import PhaseTimer
from parity.observe.tracking import Trackers
from parity.parts import Parts, Serving, open_parts
from parity.platforms.decision import Decision
from parity.platforms.detect import decide_here
from parity.platforms.platform import Platform
from parity.roles import load, make_trainer
from parity.rollouts.buffer import Buffer
from parity.rollouts.dump import EpisodeDump
from parity.rollouts.group import GroupRunner
from parity.rollouts.issuer import Issuer
from parity.rollouts.length_bias import LengthBias
from parity.run import Progress, Run, fingerprint
from parity.runtime.inline import InlineRuntime
from parity.runtime.ray.setting import Setting
from parity.runtime.runtime import Runtime, TrainerView
from parity.runtime.turns import Memory, OwnMemory, TakingTurns
from parity.tasks.stream import TaskStream
from parity.training.checkpoint import Checkpoint, CheckpointStore
from parity.types import Json
from parity.weights.direct import DirectTransfer
from parity.weights.transfer import Transfer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run begins."""

    checkpoint: Checkpoint | None = None  # None: at step 0
    reuses_groups: bool = True  # recorded groups that fit the lag bound may be trained


BEGINNING = Start()


@dataclass(frozen=True, slots=True)
class Learning:
    """The training side, and the model or the engine that comes with it."""

    runtime: Runtime
    trainer: TrainerView
    model: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None
    serving: Serving | None = None  # None: the engine is opened here
    transfer: Transfer | None = None  # None: into the engine of this process
    memory: Memory | None = None  # None: of this process


@asynccontextmanager
async def open_run(  # noqa: PLR0913 (what `launch.py` has opened before)
    config: TrainConfig,
    *,
    folder: RunFolder,
    platform: Platform,
    threads: ThreadPlan,
    display: Display,
    trackers: Trackers,
    start: Start = BEGINNING,
    decision: Decision | None = None,
) -> AsyncGenerator[Run]:
    """A wired training run, at the beginning or where `start` says."""
    async with AsyncExitStack() as stack:
        checkpoint = start.checkpoint
        ledger, recovery = open_ledger(config, folder, checkpoint)
        stack.enter_context(ledger)
        progress = progress_at(checkpoint)
        display.activity("loading the model")
        if config.runtime == "inline":
            learning = await open_here(config, platform, threads, start, folder, stack)
        else:
            decision = decision or decide_here(config.platform)
            setting = Setting(config, folder, platform, decision, threads)
            opening = partial(open_elsewhere, setting, checkpoint=checkpoint, stack=stack)
            learning = await opening(version=progress.version, tell=display.message)
        trainer = learning.trainer
        starts.note(
            folder.path, config, step=trainer.step_index, threads=threads, platform=platform.name
        )
        parts = await stack.enter_async_context(
            open_parts(
                config,
                platform=platform,
                threads=threads,
                display=display,
                model=learning.model,
                version=progress.version,
                serving=learning.serving,
                rest_dir=folder.path,
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
            runtime=await placed(config, learning, parts.engine, platform),
            transfer=learning.transfer or DirectTransfer([parts.engine], config.weights),
            ledger=ledger,
            recovery=recovery,
            reuses=start.reuses_groups,
            progress=progress,
            display=display,
            trackers=trackers,
            dump=dump,
        )


def progress_at(checkpoint: Checkpoint | None) -> Progress:
    """Where a run stands at a checkpoint (None: at its beginning)."""
    return Progress() if checkpoint is None else Progress.of(_mapping(checkpoint.state["progress"]))


async def open_here(
    config: TrainConfig,
    platform: Platform,
    threads: ThreadPlan,
    start: Start,
    folder: RunFolder,
    stack: AsyncExitStack,
) -> Learning:
    """The trainer in this process, in its own thread."""
    runtime = InlineRuntime(trainer_threads=threads.trainer)
    stack.push_async_callback(runtime.close)
    device = platform.device(0)
    model, tokenizer = await asyncio.to_thread(load, config, device)
    trainer = await runtime.in_trainer(
        partial(make_trainer, config, model, device=device, rest_dir=folder.path)
    )
    if (checkpoint := start.checkpoint) is not None:
        await runtime.in_trainer(lambda: trainer.load(checkpoint.path))
    return Learning(runtime, trainer, model=(model, tokenizer))


async def placed(
    config: TrainConfig, learning: Learning, engine: Engine, platform: Platform
) -> Runtime:
    """The runtime, in which trainer and engine take turns where they share their devices."""
    if not config.placement.takes_turns:
        return learning.runtime
    turns = TakingTurns(
        learning.runtime,
        engines=[engine],
        trainer=learning.trainer,
        deadline_s=config.supervise.step_timeout_s,
        memory=learning.memory or OwnMemory(platform.device(0)),
    )
    await turns.engines_turn()
    return turns


async def open_elsewhere(
    setting: Setting,
    *,
    checkpoint: Checkpoint | None,
    version: int,
    tell: Callable[[str], None],
    stack: AsyncExitStack,
) -> Learning:
    """Trainer and engines in other processes; Ray is imported only here."""
    try:
        from parity.runtime.ray.build import open_ray  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            f"runtime=ray needs Ray, which can't be imported ({error}); install parity-rl[ray], or "
            "set runtime=inline."
        ) from error
    path = None if checkpoint is None else checkpoint.path
    opening = open_ray(setting, checkpoint=path, version=version, tell=tell)
    parts = await stack.enter_async_context(opening)

    async def serving() -> tuple[Engine, tuple[int, ...]]:
        return parts.engine, parts.stop_token_ids

    return Learning(
        parts.runtime,
        parts.trainer,
        serving=serving,
        transfer=parts.transfer,
        memory=parts.memory,
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
    trainer: TrainerView,
    runtime: Runtime,
    transfer: Transfer,
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
    stream.remember(progress.skipped)
    return Run(
        config=config,
        folder=folder,
        parts=parts,
        trainer=trainer,
        buffer=Buffer(config.rollouts, steps=steps_left, version=progress.version),
        runner=GroupRunner(parts.setup, config.rollouts, lengths, failures=progress.failures),
        lengths=lengths,
        transfer=transfer,
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


def _mapping(value: Json) -> Mapping[str, Json]:
    assert isinstance(value, dict), f"expected an object in the checkpoint, found {value!r}"
    return value
