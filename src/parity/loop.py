"""The training loop, synchronous and asynchronous alike.

who        makes                          waits for
produce    a group of episodes per task   a free slot of the buffer
train      samples, then new weights      groups_per_step finished groups
publish    a version live in the engines  the trainer's step; with in_flight=finish also
                                          the generations that are under way

Slots of trained groups are given back when the weights trained on them are live, so with
`max_lag = 0` generating and training alternate, and with more they overlap. Evaluation and
checkpoints happen between a publication and that release: on one version, with nothing of
the next step begun in synchronous mode (with `checkpoint.asynchronous` the state is copied
then, and written beside the next steps). A step is reported while the next one computes, but
before it is saved: a run killed in between takes and reports the step again, and no record of
a saved step is missing.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import torch

from parity.errors import DeadlineError
from parity.evaluation import Evaluation, longest_grading_s
from parity.ledger.ledger import Mark
from parity.rollouts.group import why_unscored
from parity.rollouts.report import check_lag, lag_metrics, rollout_metrics
from parity.rollouts.retries import pauses_s
from parity.rollouts.samples import by_episode, reward_table, to_samples
from parity.run import Run
from parity.supervise import limits
from parity.types import Episode, Group, Json, StepReport

log = logging.getLogger(__name__)


async def train(run: Run) -> None:
    """Train to `config.steps` optimizer steps, from wherever the trainer stands."""
    if run.progress.eval_first is None:
        await evaluate(run)
    run.started = time.monotonic()
    async with generation(run):
        try:
            while run.trainer.step_index < run.config.steps and not run.should_stop():
                await one_step(run)
        except BaseException:
            await run.saving.leave(timeout_s=run.config.supervise.stop_timeout_s)
            raise
        finally:
            run.reports.now()
    if run.progress.last_eval_step != run.trainer.step_index:
        await evaluate(run)


async def one_step(run: Run) -> None:
    """Take groups, train on them, publish, look after the run."""
    groups = await take(run)
    version = run.buffer.version
    check_lag(episodes_of(groups), version=version, bound=math.ceil(run.config.rollouts.max_lag))
    advantages = run.advantage(reward_table(groups))
    samples = to_samples(groups, advantages)
    due = limits.step(run.config.supervise, run.trainer.step_index + 1)
    with run.timer.phase("train"), due:
        report = await run.runtime.in_trainer(lambda: run.trainer.step(samples))
    step = report.step
    run.issuer.trained(step, version=version, groups=groups, advantages=advantages.tolist())
    metrics: dict[str, float] = {}
    is_published = step % run.config.rollouts.steps_per_publish == 0
    if is_published:
        metrics |= await publish(run)
    metrics |= await run.runtime.engines_turn()
    after(run, report, groups, metrics, partial(tell, run, step, groups, advantages, version))
    await between(run, step)
    if is_published:
        run.buffer.release(run.progress.version)


async def take(run: Run) -> list[Group]:
    """The groups of the next step; an end to the wait that says what was waited for."""
    deadline_s = longest_silence_s(run)
    due = limits.groups(
        run.config.supervise,
        run.trainer.step_index + 1,
        run.engine,
        num_ended=lambda: run.buffer.num_ended,
        longest_silence_s=deadline_s,
    )
    with run.timer.phase("wait"), due:
        while True:
            begun = time.monotonic()
            num_ended = run.buffer.num_ended
            try:
                async with asyncio.timeout(deadline_s):
                    return await run.buffer.take()
            except TimeoutError:
                if run.buffer.num_ended > num_ended:
                    continue
                raise DeadlineError(
                    f"no group ended within {time.monotonic() - begun:.0f} s; "
                    f"{run.buffer.counts.in_flight} are in flight, {run.buffer.num_ended} ended "
                    f"before; engine: {run.engine.stats()}. Raise rollouts.episode_timeout_s or "
                    "grader.timeout_s if episodes really take so long."
                ) from None


def longest_silence_s(run: Run) -> float:
    """In so many seconds at least one group ends, even if every answer meets its time limit."""
    rollouts, grader = run.config.rollouts, run.config.grader
    answers = rollouts.capacity * rollouts.group_size / grader.processes
    tries = rollouts.max_retries + 1
    each_s = rollouts.episode_timeout_s + answers * grader.timeout_s
    return tries * each_s + 2 * pauses_s(rollouts.max_retries)  # of the engine, of the grader


async def publish(run: Run) -> dict[str, float]:
    """Make the trainer's weights live in the engines as the next version; its metrics."""
    version = run.progress.version + 1
    with run.timer.phase("publish"), limits.publication(run.config.supervise, version):
        switch = run.generation.switch
        report = await run.transfer.publish(run.weights(), version=version, switch=switch)
    run.progress.version = version
    return {name: value for name, value in report.metrics().items() if value is not None}


async def between(run: Run, step: int) -> None:
    """Evaluate and save where it is due; a write that failed beside the step ends the run here."""
    run.saved_step = await run.saving.look() or run.saved_step
    every = run.config.eval.every_steps
    if every is not None and step % every == 0:
        await evaluate(run)
    every = run.config.checkpoint.every_steps
    if every is not None and step % every == 0 and step < run.config.steps:
        await checkpoint(run)


async def evaluate(run: Run) -> Evaluation:
    """Evaluate the live weights and remember the first and the last result."""
    run.reports.now()
    run.display.activity("evaluating")
    due = limits.evaluation(
        run.config.supervise,
        run.engine,
        longest_silence_s=longest_grading_s(
            run.config.eval, run.config.grader, run.config.rollouts.max_retries
        ),
    )
    with run.timer.phase("eval"), due:
        evaluation = await run.parts.evaluator.run()
    step = run.trainer.step_index
    run.progress.last_eval_step = step
    run.progress.eval_last = evaluation.accuracy
    if run.progress.eval_first is None:
        run.progress.eval_first = evaluation.accuracy
    if evaluation.accuracy is None:
        reason = why_unscored(evaluation.episodes)
        run.display.message(f"no answer of the evaluation could be graded (last: {reason})")
    if run.config.trackers.dump_episodes:
        run.dump.write(step, evaluation.groups(), split="eval")
    run.display.evaluation(step, evaluation.metrics)
    run.trackers.log(step, evaluation.metrics)
    run.display.activity("training")
    return evaluation


async def checkpoint(run: Run) -> None:
    """Save everything that a resumed run needs."""
    run.reports.now()
    run.display.activity("saving a checkpoint")
    step = run.trainer.step_index
    due = limits.checkpoint(run.config.supervise, step)
    with run.timer.phase("checkpoint"), due:
        await saved(run)
        state = run.state()
        await asyncio.to_thread(run.ledger.flush)
        if run.config.checkpoint.asynchronous:
            write = await run.runtime.in_trainer(run.trainer.stage)
            due = limits.checkpoint(run.config.supervise, step)
            run.saving.begin(step, partial(save, run, step, state, write), due=due)
        else:
            await run.runtime.in_trainer(partial(save, run, step, state, run.trainer.save))
            run.saved_step = step
        await run.runtime.engines_turn()
    run.display.activity("training")


async def saved(run: Run) -> None:
    """Wait until the checkpoint that is being written beside the training is complete."""
    run.saved_step = await run.saving.end() or run.saved_step


def save(run: Run, step: int, state: dict[str, Json], write: Callable[[Path], None]) -> None:
    """Publish a checkpoint, tell the ledger, and remove what neither needs any more."""
    run.checkpoints.save(
        step,
        write,
        state,
        published=lambda: run.ledger.commit(Mark.of(state["ledger"])),
    )
    run.ledger.retire(oldest_checkpoint_step=run.checkpoints.complete()[0].step)


def after(
    run: Run,
    report: StepReport,
    groups: list[Group],
    metrics: dict[str, float],
    report_later: Callable[[dict[str, float]], None],
) -> None:
    """Report the step: counted now, the rest while the next one computes."""
    counts = run.buffer.counts
    counts.check()
    metrics |= report.metrics
    metrics |= run.time_metrics(groups)
    metrics |= run.lengths.step(groups, run.buffer.in_flight)
    metrics |= run.runner.new_failures()
    metrics |= run.engine.metrics()
    metrics |= {} if run.devices is None else run.devices.latest()
    metrics |= {
        "buffer/issued": counts.issued,
        "buffer/trained": counts.trained,
        "buffer/dropped": sum(counts.dropped.values()) - counts.failed,
        "buffer/failed": counts.failed,
        "buffer/in_flight": counts.in_flight,
        "rollout/dropped_groups": run.newly_dropped(counts),
        "publish/version": run.progress.version,
    }
    run.reports.do(partial(report_later, metrics))


def tell(
    run: Run,
    step: int,
    groups: list[Group],
    advantages: torch.Tensor,
    version: int,
    metrics: dict[str, float],
) -> None:
    """Write a step's episodes into the dump, its metrics to the trackers and on the screen."""
    metrics |= rollout_metrics(groups) | lag_metrics(episodes_of(groups), version=version)
    if run.config.trackers.dump_episodes:
        run.dump.write(step, groups, advantages=by_episode(groups, advantages))
    run.trackers.log(step, metrics)
    run.display.step(step, metrics)
    for sentence in run.advisor(metrics):
        run.display.message(sentence)


def episodes_of(groups: Iterable[Group]) -> list[Episode]:
    """All episodes of some groups, in order."""
    return [episode for group in groups for episode in group.episodes]


@asynccontextmanager
async def generation(run: Run) -> AsyncGenerator[None]:
    """Keep the buffer's slots busy; a failing task source ends the training too."""
    try:
        async with asyncio.TaskGroup() as background:
            watchers = [
                background.create_task(produce(run), name="produce"),
                # A group that fails ends the run at once, also while the trainer computes.
                background.create_task(run.buffer.failed(), name="failed groups"),
            ]
            try:
                yield
            finally:
                for watcher in watchers:
                    watcher.cancel()
                await run.buffer.close("run_ended")
    except BaseExceptionGroup as errors:
        raise first_cause(errors) from None


def first_cause(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside nested groups: the one that ended the run."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def produce(run: Run) -> None:
    """Start one group per task, each as soon as a slot is free."""
    while True:
        await run.buffer.slot()
        ticket = run.issuer.next()
        run.buffer.start(
            ticket.index, partial(run.run_group, ticket), version=ticket.oldest_version
        )
