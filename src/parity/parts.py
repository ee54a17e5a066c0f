"""What generating and grading need: model, tasks, engine, grader; shared by train, SFT and eval.

`open_parts` starts all of it and closes it in the reverse order, whatever happened. Grader
processes start while the model loads, so that the first answers come seconds after the
command. Used by `build.py`, `launch.py` and `measure.py`.
"""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from parity.config.resolve import to_plain
from parity.config.schema import TasksConfig, TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines.engine import Engine
from parity.errors import ConfigError
from parity.evaluation import Evaluator
from parity.models.loading import load_tokenizer
from parity.models.rendering import Renderer
from parity.observe.dashboard.display import Display
from parity.platforms.platform import Platform
from parity.rewards.grader import GraderPool
from parity.roles import AnyConfig, load, open_engine, stop_ids
from parity.rollouts.config import InFlight, RolloutsConfig
from parity.rollouts.generation import Generation
from parity.rollouts.group import EpisodeSetup
from parity.tasks import TASKS
from parity.tasks.config import PromptsConfig
from parity.tasks.source import TaskSource
from parity.tasks.stream import held_out, split, survey
from parity.types import Task

log = logging.getLogger(__name__)
# Opens an engine of other processes; with the ids that end an answer.
Serving = Callable[[], Awaitable[tuple[Engine, tuple[int, ...]]]]
EVAL_SEED_OFFSET = 1_000_000_007
MOST_MEASURED, SAMPLE_MEASURED = 20_000, 256  # prompts measured before the run


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What generating and grading need."""

    platform: Platform
    device: torch.device
    threads: ThreadPlan
    model: PreTrainedModel | None  # None: other processes hold it
    tokenizer: PreTrainedTokenizerBase
    renderer: Renderer
    engine: Engine
    setup: EpisodeSetup
    train_tasks: tuple[TaskSource, range]
    evaluator: Evaluator


@asynccontextmanager
async def open_parts(  # noqa: PLR0913 (what the run file and the command decide)
    config: AnyConfig,
    *,
    platform: Platform,
    threads: ThreadPlan,
    display: Display,
    model: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None,
    version: int = 0,
    serving: Serving | None = None,
    rest_dir: Path | None = None,
) -> AsyncGenerator[Parts]:
    """Everything that generates and grades, started; see `Parts`.

    Args:
        model: weights and tokenizer to serve, as `version`; None loads `config.model`.
        serving: opens an engine of other processes; None: of this one.
        rest_dir: where weights rest while an engine on the CPU sleeps.
    """
    async with AsyncExitStack() as stack:
        grader = GraderPool(config.reward, config.grader)
        stack.push_async_callback(grader.close)
        grader_start = asyncio.create_task(grader.start())
        stack.callback(grader_start.cancel)
        display.activity("loading the model")
        device, loaded = torch.device("cpu"), None
        if serving is None:
            device = platform.device(0)
            loaded, tokenizer = model or await asyncio.to_thread(load, config, device)
        else:
            tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        renderer = Renderer(
            tokenizer,
            chat_template=config.model.chat_template,
            eos_tokens=config.model.eos_tokens,
        )
        display.activity("reading the tasks")
        source, train_range, eval_tasks = await asyncio.to_thread(read_tasks, config, renderer)
        if serving is None:
            assert loaded is not None, "an engine of this process needs a model"
            stop = stop_ids(config, loaded, tokenizer)
            opening = partial(open_engine, config, loaded, renderer, stop, threads=threads)
            engine = opening(version=version, rest_dir=rest_dir)
        else:
            engine, stop = await serving()
        stack.push_async_callback(engine.close)
        display.activity("starting the grader")
        await grader_start
        setup = setup_of(config, engine, grader, renderer, stop)
        yield Parts(
            platform=platform,
            device=device,
            threads=threads,
            model=loaded,
            tokenizer=tokenizer,
            renderer=renderer,
            engine=engine,
            setup=setup,
            train_tasks=(source, train_range),
            evaluator=evaluator_of(config, setup, eval_tasks),
        )


def setup_of(
    config: AnyConfig,
    engine: Engine,
    grader: GraderPool,
    renderer: Renderer,
    stop: tuple[int, ...],
) -> EpisodeSetup:
    """What an episode needs."""
    return EpisodeSetup(
        generation=Generation(engine, in_flight=in_flight_of(config)),
        grader=grader,
        decode=renderer.decode,
        sampling=config.sampling,
        stop_token_ids=stop,
        seed=config.seed,
    )


def evaluator_of(config: AnyConfig, setup: EpisodeSetup, tasks: tuple[Task, ...]) -> Evaluator:
    """The evaluation of the run file."""
    rollouts = config.rollouts if isinstance(config, TrainConfig) else RolloutsConfig()
    return Evaluator(
        setup,
        tasks=tasks,
        temperature=config.eval.temperature,
        samples_per_task=config.eval.samples_per_task,
        max_retries=rollouts.max_retries,
        max_failed_share=rollouts.max_failed_share,
    )


def in_flight_of(config: AnyConfig) -> InFlight:
    """What a publication does to unfinished requests."""
    return config.rollouts.in_flight if isinstance(config, TrainConfig) else "continue"


def read_tasks(config: AnyConfig, renderer: Renderer) -> tuple[TaskSource, range, tuple[Task, ...]]:
    """The training source with its range, and the rendered tasks of the evaluation."""
    source = open_source(config.tasks, config.seed, renderer)
    if config.eval.tasks is None:
        train_range, eval_range = split(source, config.eval.num_tasks)
        eval_source = source
    else:
        # Far from the training seed: many procedural sets shift by one task per seed.
        eval_source = open_source(config.eval.tasks, config.seed + EVAL_SEED_OFFSET, renderer)
        train_range = range(source.size)
        eval_range = range(min(eval_source.size, config.eval.num_tasks))
    tasks = held_out(eval_source, eval_range, renderer=renderer, prompts=config.prompts)
    measure_prompts(source, train_range, renderer, config.prompts)
    return source, train_range, tasks


def measure_prompts(
    source: TaskSource, indices: range, renderer: Renderer, prompts: PromptsConfig
) -> None:
    """Learn of long prompts now rather than late: all of them under `stop` in a source of
    modest size, a sample otherwise. Raises DataError under `stop`.
    """
    is_whole = prompts.on_long == "stop" and len(indices) <= MOST_MEASURED
    most = None if is_whole else SAMPLE_MEASURED
    found = survey(source, indices, renderer=renderer, prompts=prompts, most=most)
    log.info("event=prompts_measured %s", found)
    if found.num_long > 0.5 * found.num_measured:
        log.warning(
            "event=most_prompts_too_long long=%d of=%d longest=%d limit=%d; raise "
            "prompts.max_prompt_tokens",
            found.num_long,
            found.num_measured,
            found.longest_tokens,
            prompts.max_prompt_tokens,
        )


def open_source(config: TasksConfig, seed: int, renderer: Renderer) -> TaskSource:
    """The task source of a `tasks` section.

    `chat: null` becomes true where the tokenizer has a chat template, and is logged.
    """
    kind = TASKS.load(config.name)
    if not isinstance(kind, type) or not issubclass(kind, TaskSource):
        raise ConfigError(
            f"tasks.name={config.name} leads to {kind!r}; it must be a subclass of"
            " parity.tasks.source.TaskSource."
        )
    if to_plain(config).get("chat", False) is None:  # a source may have no such key
        chat = renderer.has_chat_template
        config = dataclasses.replace(config, chat=chat)
        reason = "has a" if chat else "has no"
        log.info("event=chat_chosen chat=%s reason=the tokenizer %s template", chat, reason)
    return kind(config, seed=seed)  # pyright: ignore[reportCallIssue]
