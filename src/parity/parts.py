"""What generating and grading need: model, tasks, engine, grader; shared by train, SFT and eval.

`open_parts` starts all of it and closes it in the reverse order, whatever happened. Grader
processes start while the model loads, so that the first answers come seconds after the
command. Used by `build.py`, `launch.py` and `measure.py`.
"""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from parity.config.resolve import to_plain
from parity.config.schema import SftConfig, TasksConfig, TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines import ENGINES
from parity.engines.embedded.engine import EmbeddedEngine
from parity.engines.engine import Engine
from parity.errors import ConfigError, UnsupportedError
from parity.evaluation import Evaluator
from parity.models.loading import load_model, load_tokenizer
from parity.models.rendering import Renderer, eos_token_ids
from parity.models.tiny import make_tiny
from parity.observe.dashboard.display import Display
from parity.platforms.platform import Platform
from parity.rewards.grader import GraderPool
from parity.rollouts.config import InFlight
from parity.rollouts.generation import Generation
from parity.rollouts.group import EpisodeSetup
from parity.tasks import TASKS
from parity.tasks.config import PromptsConfig
from parity.tasks.source import TaskSource
from parity.tasks.stream import held_out, split, survey
from parity.types import Task

log = logging.getLogger(__name__)
AnyConfig = TrainConfig | SftConfig
EVAL_SEED_OFFSET = 1_000_000_007
MOST_MEASURED, SAMPLE_MEASURED = 20_000, 256  # prompts measured before the run


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What generating and grading need."""

    platform: Platform
    device: torch.device
    threads: ThreadPlan
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    renderer: Renderer
    engine: Engine
    setup: EpisodeSetup
    train_tasks: tuple[TaskSource, range]
    evaluator: Evaluator


def warn_of_positions(model: PreTrainedModel, longest: int) -> None:
    """Say that a prompt with its answer may be longer than the model was made for."""
    positions = model.config.to_dict().get("max_position_embeddings")
    if isinstance(positions, int) and longest > positions:
        log.warning(
            "event=few_positions max_position_embeddings=%d longest_episode=%d; lower "
            "prompts.max_prompt_tokens or sampling.max_new_tokens if answers get that long",
            positions,
            longest,
        )


@asynccontextmanager
async def open_parts(
    config: AnyConfig,
    *,
    platform: Platform,
    threads: ThreadPlan,
    display: Display,
    model: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None = None,
    version: int = 0,
) -> AsyncGenerator[Parts]:
    """Everything that generates and grades, started.

    Args:
        model: weights and tokenizer to serve; None loads `config.model`.
        version: which version these weights are.
    """
    async with AsyncExitStack() as stack:
        grader = GraderPool(config.reward, config.grader)
        stack.push_async_callback(grader.close)
        grader_start = asyncio.create_task(grader.start())
        stack.callback(grader_start.cancel)
        display.activity("loading the model")
        device = platform.device(0)
        loaded, tokenizer = model or await asyncio.to_thread(load, config, device)
        renderer = Renderer(
            tokenizer,
            chat_template=config.model.chat_template,
            eos_tokens=config.model.eos_tokens,
        )
        display.activity("reading the tasks")
        source, train_range, eval_tasks = await asyncio.to_thread(read_tasks, config, renderer)
        stop = stop_ids(config, loaded, tokenizer)
        engine = open_engine(config, loaded, renderer, stop, threads=threads, version=version)
        stack.push_async_callback(engine.close)
        display.activity("starting the grader")
        await grader_start
        setup = EpisodeSetup(
            generation=Generation(engine, in_flight=in_flight_of(config)),
            grader=grader,
            decode=renderer.decode,
            sampling=config.sampling,
            stop_token_ids=stop,
            seed=config.seed,
        )
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
            evaluator=Evaluator(
                setup,
                tasks=eval_tasks,
                temperature=config.eval.temperature,
                samples_per_task=config.eval.samples_per_task,
            ),
        )


def in_flight_of(config: AnyConfig) -> InFlight:
    """What a publication does to unfinished requests."""
    return config.rollouts.in_flight if isinstance(config, TrainConfig) else "continue"


def stop_ids(
    config: AnyConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """The ids that end an answer, sorted."""
    eos_tokens = config.model.eos_tokens
    return tuple(sorted(eos_token_ids(model.generation_config, tokenizer, eos_tokens=eos_tokens)))


def load(
    config: AnyConfig, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of the run file in float32 (master weights), and its tokenizer."""
    if isinstance(config, SftConfig) and config.tiny_model is not None:
        tiny, characters = make_tiny(config.tiny_model, config.seed)
        torch.nn.Module.to(tiny, device)
        return tiny, characters
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model, dtype="float32", device=device, tokenizer=tokenizer)
    return model, tokenizer


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


def open_engine(
    config: AnyConfig,
    model: PreTrainedModel,
    renderer: Renderer,
    stop: tuple[int, ...],
    *,
    threads: ThreadPlan,
    version: int,
) -> Engine:
    """The engine of the run file, serving a copy of `model`."""
    kind = ENGINES.load(config.engine.name)
    if not (isinstance(kind, type) and issubclass(kind, EmbeddedEngine)):
        raise UnsupportedError(
            f"engine.name={config.engine.name!r} isn't built on the embedded engine, the only kind "
            "that the inline runtime can start; subclass EmbeddedEngine or choose embedded."
        )
    longest = config.prompts.max_prompt_tokens + config.sampling.max_new_tokens
    warn_of_positions(model, longest)
    return kind(
        model,
        config=config.engine,
        max_length=config.engine.max_length or longest,
        eos_token_ids=stop,
        decode=renderer.decode,
        device=model.device,
        threads=threads.engine,
        seed=config.seed,
        version=version,
    )
