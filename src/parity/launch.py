"""What the commands do: start, go on with, or evaluate a run, and end it in good order.

Every run ends in exactly one of finished, failed and stopped, says so in `summary.json` and
in its exit code, and leaves a checkpoint from which `parity resume` goes on where it can.
A first Ctrl-C (or SIGTERM) ends after the current step; a second one at once.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import sys
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path

from rich.console import Console

import parity
from parity import loop
from parity.build import BEGINNING, Start, open_run
from parity.config import environment
from parity.config.arithmetic import check, derive, processes
from parity.config.compose import load_train
from parity.config.resolve import to_plain
from parity.config.saved import absolute, save
from parity.config.schema import SftConfig, TrainConfig
from parity.config.threads import ThreadPlan, available_cores, plan
from parity.ending import Ending, Stopper, what_next
from parity.errors import CheckpointError, ConfigError, ParityError, is_refused_input
from parity.folder import RunFolder, RunInfo, RunKind
from parity.observe.dashboard.choose import open_display
from parity.observe.dashboard.display import Display, MessageHandler
from parity.observe.devices import DeviceMetrics
from parity.observe.log_file import LogFile
from parity.observe.summary import Summary
from parity.observe.tracking import Trackers
from parity.platforms import detect
from parity.platforms.decision import Decision
from parity.platforms.platform import Platform
from parity.run import Run
from parity.supervise import limits
from parity.supervise.watchdog import Watchdog
from parity.tasks.config import FileConfig
from parity.training.checkpoint import Checkpoint, CheckpointStore

log = logging.getLogger(__name__)
INTERRUPTED = 130
NOTHING_TO_DO = 3
# Sections of the run file that decide what a group is; its recorded episodes hold only as long
# as they stay.
MAKES_GROUPS = ("model", "tasks", "prompts", "sampling", "reward", "grader", "seed", "rollouts")


def train(config: TrainConfig, *, recipe: str) -> int:
    """Run `parity train`; returns the exit code."""
    folder = new_folder(config, recipe=recipe, kind="train")
    with without_refused_input(folder), folder.locked():
        keep_config(config, folder)
        return _watched(config, folder, start=BEGINNING)


def resume(run_dir: Path, overrides: Sequence[str]) -> int:
    """Run `parity resume`; returns the exit code."""
    folder = RunFolder(run_dir)
    if folder.info().kind != "train":
        raise ConfigError(f"{run_dir} is an {folder.info().kind} run; only train runs resume.")
    config = load_train(str(folder.config_path), overrides)
    check(config)
    with folder.locked():
        checkpoint = newest_checkpoint(config, folder)
        step = 0 if checkpoint is None else checkpoint.step
        if step >= config.steps and is_saved_whole(folder, step):
            print_line(
                f"nothing to do: {folder.name} stands at step {step} and steps is "
                f"{config.steps}. Give a larger one, as in `parity resume {folder.name} "
                f"steps={step * 2}`."
            )
            return NOTHING_TO_DO
        start = Start(checkpoint, reuses_groups=not changes_rollouts(overrides))
        return _watched(config, folder, start=start)


def is_saved_whole(folder: RunFolder, step: int) -> bool:
    """Whether a process ended well at this step, or later: nothing is left to export."""
    if not folder.summary_path.is_file():
        return False
    summary = Summary.read(folder.path)
    return summary.status != "failed" and summary.steps >= step


def changes_rollouts(overrides: Sequence[str]) -> bool:
    """Whether groups made before these overrides aren't what would be made now."""
    return any(word.lstrip("+~").startswith(MAKES_GROUPS) for word in overrides)


def newest_checkpoint(config: TrainConfig, folder: RunFolder) -> Checkpoint | None:
    """The checkpoint to go on from; None where the run had saved none: it begins anew.

    Raises CheckpointError where there are some and none is as it was written, ConfigError where
    it lies between publications.
    """
    store = CheckpointStore(folder.checkpoints_dir, config.checkpoint.keep)
    checkpoint = store.newest()
    if checkpoint is None and store.is_empty():
        return None
    if checkpoint is None:
        raise CheckpointError(
            f"none of the checkpoints in {folder.checkpoints_dir} is as it was written (the "
            "warnings above say why); restore one from a copy, or start a new run."
        )
    every = config.rollouts.steps_per_publish
    if checkpoint.step % every:
        raise ConfigError(
            f"the checkpoint is of step {checkpoint.step}, not a multiple of "
            f"rollouts.steps_per_publish={every}; resume with the number that the run had."
        )
    return checkpoint


def _watched(config: TrainConfig, folder: RunFolder, *, start: Start) -> int:
    with Watchdog(config.supervise, run_dir=folder.path) as watchdog:
        return asyncio.run(_train(config, folder, watchdog, start=start))


async def _train(
    config: TrainConfig,
    folder: RunFolder,
    watchdog: Watchdog,
    *,
    start: Start,
) -> int:
    platform, threads, decision = prepare(config, max_lag=config.rollouts.max_lag)
    trackers = open_trackers(config, folder)
    with opened_display(config, folder, platform, threads, decision) as display:
        ending = Ending(folder, platform, is_resumed=start.checkpoint is not None)
        watchdog.last_words = ending.failure
        stopper = Stopper(display)
        try:
            stopper.attach()
            trackers.start(to_plain(config))
            async with watchdog.attached(), AsyncExitStack() as stack:
                with limits.start(config.supervise):
                    run = await stack.enter_async_context(
                        open_run(
                            config,
                            folder=folder,
                            platform=platform,
                            threads=threads,
                            display=display,
                            trackers=trackers,
                            start=start,
                            decision=decision,
                        )
                    )
                ending.run = stopper.work = run
                run.devices = stack.enter_context(
                    DeviceMetrics(platform.telemetry(), decision.devices)
                )
                keep_config(config, folder)
                show_notes(run)
                with watchdog.guarding():
                    look_after(watchdog, run)
                    await loop.train(run)
                    await keep(run)
            summary = ending.success()
        except BaseException as error:
            ending.failure(error)
            if isinstance(error, asyncio.CancelledError):
                return INTERRUPTED
            raise
        finally:
            await asyncio.to_thread(trackers.finish)
            stopper.detach()
        display.finish(summary)
    if config.display != "none":
        print_line(what_next(folder, summary))
    return INTERRUPTED if summary.status == "stopped" and run.is_interrupted else 0


def keep_config(config: TrainConfig | SftConfig, folder: RunFolder) -> None:
    """Write `config.yaml`: without the run's name, which is the folder's, so that it can be
    used as a recipe, and with the absolute paths of local files, so that it works from anywhere.
    """
    output = dataclasses.replace(config.output, name=None)
    model = dataclasses.replace(config.model, path=absolute(config.model.path))
    config = dataclasses.replace(config, output=output, model=model)
    if isinstance(config.tasks, FileConfig):
        tasks = dataclasses.replace(config.tasks, path=absolute(config.tasks.path))
        config = dataclasses.replace(config, tasks=tasks)
    save(config, folder.config_path)


def show_notes(run: Run) -> None:
    """Say what `parity config` would have noted, and where a resumed run goes on."""
    derived = derive(run.config, cores=available_cores(), environment=environment.omp_threads())
    for note in derived.notes:
        run.display.message(note)
    if run.trainer.step_index:
        run.display.message(f"going on from step {run.trainer.step_index}")


def look_after(watchdog: Watchdog, run: Run) -> None:
    """Show the watchdog what moves in a run."""
    silence_s = loop.longest_silence_s(run)
    watchdog.watch(
        limits.engine_tokens(run.config.supervise, run.engine, longest_silence_s=silence_s)
    )
    watchdog.figures = lambda: {
        "optimizer steps": run.trainer.step_index,
        "version": run.progress.version,
        "groups": f"{run.buffer.num_ended} ended, {run.buffer.counts}",
        "engine": run.engine.stats(),
    }


async def keep(run: Run) -> None:
    """Save what the run came to: a checkpoint of the last step, and the export."""
    step = run.trainer.step_index
    await loop.saved(run)
    if step > 0 and run.saved_step != step:
        await loop.checkpoint(run)
        await loop.saved(run)
    if run.config.checkpoint.export:
        run.display.activity("exporting the model")
        with limits.checkpoint(run.config.supervise, step):
            await run.runtime.in_trainer(
                lambda: run.trainer.export(run.folder.model_dir, run.parts.tokenizer)
            )


def new_folder(config: TrainConfig | SftConfig, *, recipe: str, kind: RunKind) -> RunFolder:
    """Make the run's folder."""
    info = RunInfo(
        recipe=recipe,
        kind=kind,
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        parity_version=parity.__version__,
    )
    return RunFolder.create(Path(config.output.dir), name=config.output.name, info=info)


@contextlib.contextmanager
def without_refused_input(folder: RunFolder) -> Generator[None]:
    """Remove the new folder of a run that ended before it began, because of what it was given.

    One with a checkpoint stays, whatever the error says of itself.
    """
    try:
        yield
    except ParityError as error:
        if is_refused_input(error) and not any(folder.checkpoints_dir.glob("*")):
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


def open_trackers(config: TrainConfig | SftConfig, folder: RunFolder) -> Trackers:
    """The trackers of the run file."""
    return Trackers.of(
        config.trackers.names,
        run_dir=folder.path,
        project=config.trackers.project,
        run_name=folder.name,
    )


def prepare(
    config: TrainConfig | SftConfig, *, max_lag: float
) -> tuple[Platform, ThreadPlan, Decision]:
    """Platform and thread budgets, decided once; the decision is told when a log is open."""
    decision = detect.decide_here(config.platform)
    is_remote = isinstance(config, TrainConfig) and config.runtime != "inline"
    platform = detect.use(decision, needs_device=not is_remote)
    platform.seed(config.seed)
    ranks, replicas = processes(config)
    threads = plan(
        available_cores(),
        max_lag,
        config.threads.trainer,
        config.threads.engine,
        environment.omp_threads(),
        ranks=ranks,
        replicas=replicas,
    )
    return platform, threads, decision


@contextlib.contextmanager
def opened_display(
    config: TrainConfig | SftConfig,
    folder: RunFolder,
    platform: Platform,
    threads: ThreadPlan,
    decision: Decision,
) -> Generator[Display]:
    """The display, with the run's log file and warnings wired to it."""
    root = logging.getLogger("parity")
    display = open_display(
        config.display,
        total_steps=config.steps,
        console=Console(no_color=environment.is_color_off()),
        is_ci=environment.is_ci(),
    )
    file = LogFile(folder.log_path, tell=display.message)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    shown = MessageHandler(display)
    shown.setFormatter(logging.Formatter("%(message)s"))
    root.setLevel(logging.INFO)
    root.addHandler(file)
    root.addHandler(shown)
    root.propagate = False
    facts = {
        "folder": str(folder.path),
        "model": "a new tiny one" if config.model.path is None else config.model.path,
        "tasks": config.tasks.name,
        "platform": platform.name,
        "threads": f"trainer {threads.trainer}, engine {threads.engine}",
    }
    log.info("event=started folder=%s threads=%s pid=%s", folder.path, threads, os.getpid())
    try:
        with display:
            display.start(folder.name, facts)
            detect.tell(decision)
            yield display
    finally:
        root.removeHandler(file)
        root.removeHandler(shown)
        file.close()


def print_line(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(text + "\n")
