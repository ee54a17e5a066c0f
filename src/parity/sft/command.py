"""`parity sft`: a supervised run from its folder to its export, watched as training is.

The loop is in `fitting.py`; folders, displays and trackers come from `launch.py`.
"""

import asyncio
import time
from contextlib import AsyncExitStack

from parity.config.resolve import to_plain
from parity.config.schema import SftConfig
from parity.config.threads import ThreadPlan
from parity.ending import Ending, Stopper
from parity.folder import RunFolder
from parity.launch import (
    INTERRUPTED,
    keep_config,
    new_folder,
    open_trackers,
    opened_display,
    prepare,
    without_refused_input,
)
from parity.observe.devices import DeviceMetrics
from parity.observe.summary import Summary
from parity.observe.timer import PhaseTimer
from parity.observe.tracking import Trackers
from parity.parts import open_parts
from parity.platforms.decision import Decision
from parity.platforms.platform import Platform
from parity.runtime.inline import InlineRuntime
from parity.sft.fitting import Fitting
from parity.supervise import limits
from parity.supervise.watchdog import Watchdog


def sft(config: SftConfig, *, recipe: str) -> int:
    """Run `parity sft`; returns the exit code."""
    folder = new_folder(config, recipe=recipe, kind="sft")
    with without_refused_input(folder), folder.locked():
        keep_config(config, folder)
        with Watchdog(config.supervise, run_dir=folder.path) as watchdog:
            return asyncio.run(_sft(config, folder, watchdog))


async def _sft(config: SftConfig, folder: RunFolder, watchdog: Watchdog) -> int:
    platform, threads, decision = prepare(config, max_lag=0.0)
    trackers = open_trackers(config, folder)
    with opened_display(config, folder, platform, threads, decision) as display:
        ending = Ending(folder, platform)
        watchdog.last_words = ending.failure
        stopper = Stopper(display)
        try:
            stopper.attach()
            trackers.start(to_plain(config))
            async with watchdog.attached():
                prepared = (platform, threads, decision)
                summary = await _fit(config, folder, prepared, trackers, stopper, watchdog)
            display.finish(summary)
        except BaseException as error:
            ending.failure(error, has_begun=stopper.work is not None)
            if isinstance(error, asyncio.CancelledError):
                return INTERRUPTED
            raise
        finally:
            await asyncio.to_thread(trackers.finish)
            stopper.detach()
    return INTERRUPTED if summary.status == "stopped" else 0


async def _fit(
    config: SftConfig,
    folder: RunFolder,
    prepared: tuple[Platform, ThreadPlan, Decision],
    trackers: Trackers,
    stopper: Stopper,
    watchdog: Watchdog,
) -> Summary:
    platform, threads, decision = prepared
    display = stopper.display
    async with AsyncExitStack() as stack:
        with limits.start(config.supervise):
            runtime = InlineRuntime(trainer_threads=threads.trainer)
            stack.push_async_callback(runtime.close)
            parts = await stack.enter_async_context(
                open_parts(config, platform=platform, threads=threads, display=display)
            )
            fitting = Fitting(
                config,
                parts=parts,
                runtime=runtime,
                trackers=trackers,
                display=display,
                timer=PhaseTimer(),
            )
        stopper.work = fitting
        fitting.devices = stack.enter_context(DeviceMetrics(platform.telemetry(), decision.devices))
        with watchdog.guarding():
            look_after(watchdog, fitting)
            first, last = await fitting.run()
            with limits.checkpoint(config.supervise, fitting.trainer.step_index):
                await runtime.in_trainer(lambda: fitting.export(folder.model_dir))
        seconds = time.monotonic() - fitting.started
        summary = Summary(
            status="stopped" if fitting.is_stopping else "finished",
            reason=fitting.stop_reason if fitting.is_stopping else None,
            platform=platform.name,
            steps=fitting.trainer.step_index,
            train_seconds=seconds,
            seconds=fitting.timer.total().seconds,
            eval_first=first.accuracy,
            eval_last=last.accuracy,
            tokens_per_s=fitting.trained_tokens / seconds,
        )
        summary.write(folder.path)
        return summary


def look_after(watchdog: Watchdog, fitting: Fitting) -> None:
    """Show the watchdog what moves in a supervised run."""
    supervise, engine = fitting.config.supervise, fitting.parts.engine
    watchdog.watch(
        limits.engine_tokens(supervise, engine, longest_silence_s=fitting.longest_grading_s)
    )
    watchdog.figures = lambda: {
        "optimizer steps": fitting.trainer.step_index,
        "engine": engine.stats(),
    }
