"""`parity eval`: accuracy and pass@k of a run or a model on held-out tasks, without training.

A run brings its own configuration and its exported model; any other model is measured on the
tasks and reward of a recipe. The result goes to the terminal and to an `eval` run folder.
"""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from parity.config import environment
from parity.config.arithmetic import check, in_one_process
from parity.config.compose import load_train
from parity.config.saved import save
from parity.config.schema import TrainConfig
from parity.ending import Ending, Stopper
from parity.errors import ConfigError
from parity.evaluation import Evaluation, longest_grading_s
from parity.folder import RunFolder
from parity.launch import new_folder, opened_display, prepare, without_refused_input
from parity.observe.encode import encode
from parity.observe.names import find
from parity.observe.summary import Summary
from parity.parts import Parts, open_parts
from parity.rollouts.dump import EpisodeDump
from parity.supervise import limits
from parity.supervise.watchdog import Watchdog


def evaluate(
    run_or_model: str,
    *,
    recipe: str | None,
    overrides: Sequence[str],
    samples: int | None,
    tasks: int | None,
    temperature: float | None,
    k: tuple[int, ...],
) -> int:
    """Run `parity eval`; returns the exit code."""
    config = wanted(run_or_model, recipe=recipe, overrides=overrides)
    changes = {
        "samples_per_task": samples or (max(k) if k else None),
        "num_tasks": tasks,
        "temperature": temperature,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, **changes))
    check(config)
    config = in_one_process(config)
    folder = new_folder(config, recipe=f"eval-{Path(run_or_model).name}", kind="eval")
    with without_refused_input(folder), Watchdog(config.supervise, run_dir=folder.path) as watchdog:
        save(config, folder.config_path)
        evaluation = asyncio.run(_evaluate(config, folder, watchdog, k or powers(config)))
    show(evaluation)
    return 0


def wanted(run_or_model: str, *, recipe: str | None, overrides: Sequence[str]) -> TrainConfig:
    """The configuration to measure under: the run's own, or a recipe's with another model."""
    run_dir = Path(run_or_model) if (Path(run_or_model) / "run.json").is_file() else None
    if run_dir is not None and recipe is None:
        folder = RunFolder(run_dir)
        if not folder.model_dir.is_dir():
            raise ConfigError(
                f"{run_dir} holds no exported model yet; let the run end, or evaluate a model "
                "folder with --recipe."
            )
        if folder.info().kind != "train":
            raise ConfigError(
                f"{run_dir} is an {folder.info().kind} run; give its model and a recipe, as in "
                f"`parity eval {folder.model_dir} --recipe quickstart`."
            )
        own = [f"model.path={json.dumps(str(folder.model_dir.resolve()))}", "output.name=null"]
        return load_train(str(folder.config_path), [*own, *overrides])
    if recipe is None:
        raise ConfigError(
            f"{run_or_model!r} is no run, and a model needs tasks to be measured on; add --recipe "
            "NAME, as in --recipe quickstart."
        )
    path = str(RunFolder(run_dir).model_dir) if run_dir is not None else run_or_model
    return load_train(recipe, [f"model.path={json.dumps(path)}", *overrides])


def powers(config: TrainConfig) -> tuple[int, ...]:
    """1, 2, 4 and so on up to the answers per task."""
    n = config.eval.samples_per_task
    return tuple(2**i for i in range(n.bit_length())) if n > 1 else ()


async def _evaluate(
    config: TrainConfig, folder: RunFolder, watchdog: Watchdog, ks: Sequence[int]
) -> Evaluation:
    platform, threads, decision = prepare(config, max_lag=0.0)
    with opened_display(config, folder, platform, threads, decision) as display:
        ending = Ending(folder, platform)
        watchdog.last_words = ending.failure
        stopper = Stopper(display)
        try:
            stopper.attach()
            async with watchdog.attached(), AsyncExitStack() as stack:
                with limits.start(config.supervise):
                    parts = await stack.enter_async_context(
                        open_parts(config, platform=platform, threads=threads, display=display)
                    )
                display.activity("evaluating")
                with watchdog.guarding():
                    evaluation = await watched(config, parts, watchdog, ks)
        except BaseException as error:
            ending.failure(error)
            raise
        finally:
            stopper.detach()
    with EpisodeDump(folder.episodes_dir) as dump:
        dump.write(0, evaluation.groups(), split="eval")
    text = json.dumps(encode(evaluation.metrics), indent=2)
    (folder.path / "evaluation.json").write_text(text + "\n")
    Summary(
        status="finished",
        platform=platform.name,
        steps=0,
        eval_first=evaluation.accuracy,
        eval_last=evaluation.accuracy,
    ).write(folder.path)
    return evaluation


async def watched(
    config: TrainConfig, parts: Parts, watchdog: Watchdog, ks: Sequence[int]
) -> Evaluation:
    """The evaluation; the watchdog sees what moves in it."""
    engine = parts.engine
    silence_s = longest_grading_s(config.eval, config.grader, config.rollouts.max_retries)
    watchdog.watch(limits.engine_tokens(config.supervise, engine, longest_silence_s=silence_s))
    watchdog.figures = lambda: {"engine": engine.stats()}
    with limits.evaluation(config.supervise, engine, longest_silence_s=silence_s):
        return await parts.evaluator.run(ks=ks)


def show(evaluation: Evaluation) -> None:
    """Print the result as a table, intervals beside their values."""
    table = Table("metric", "value", "95 % interval", title="evaluation")
    metrics = evaluation.metrics
    for name, value in metrics.items():
        if "_low" in name or "_high" in name:
            continue
        stem, _, k = name.rpartition("_")
        low_high = (
            (f"{name}_low", f"{name}_high")
            if not k.isdecimal()
            else (f"{stem}_low_{k}", f"{stem}_high_{k}")
        )
        interval = " to ".join(f"{metrics[n]:.3f}" for n in low_high if n in metrics)
        metric = find(name)
        is_count = metric is not None and metric.unit in ("task", "answer")
        shown = f"{value:.0f}" if is_count else f"{value:.3f}"
        table.add_row(name.removeprefix("eval/"), shown, interval)
    Console(no_color=environment.is_color_off()).print(table)
