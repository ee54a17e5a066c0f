"""The waits of a training run: each with its limit, the key that sets it, and what to try.

Used by `loop.py` and `launch.py`, so that they name a wait in one word.
"""

from collections.abc import Callable

from parity.engines.engine import Engine
from parity.supervise.config import SuperviseConfig
from parity.supervise.judge import Watch
from parity.supervise.waits import Wait, waiting

_ENGINE_HINT = "Look at the engine's thread below: it holds requests and computes no token."


def start(config: SuperviseConfig) -> Wait:
    """Everything before the first prompt."""
    return waiting(
        "driver",
        "the model, the tasks and the grader",
        deadline_s=config.start_timeout_s,
        limit="supervise.start_timeout_s",
        hint="A download or a slow disk may be behind it; try with local files.",
    )


def groups(
    config: SuperviseConfig,
    step: int,
    engine: Engine,
    *,
    num_ended: Callable[[], int],
    longest_silence_s: float,
) -> Wait:
    """The groups of a step; every token and every ended group is progress."""
    return waiting(
        "driver",
        f"the groups of step {step}",
        deadline_s=config.stall_s(longest_silence_s),
        limit="supervise.stall_timeout_s",
        hint="If no token came, look at the engine's thread; if answers wait to be graded, at the "
        "grader processes (a frozen one is in state T), and at grader.timeout_s.",
        progress=lambda: (num_ended(), tokens(engine)),
    )


def step(config: SuperviseConfig, number: int) -> Wait:
    """One optimizer step."""
    return waiting(
        "driver",
        f"the trainer's step {number}",
        deadline_s=config.step_timeout_s,
        limit="supervise.step_timeout_s",
        hint="Look at the trainer's thread below, and at other ranks if there are any.",
    )


def publication(config: SuperviseConfig, version: int) -> Wait:
    """One publication, with the generations that it waits for."""
    return waiting(
        "driver",
        f"the publication of version {version}",
        deadline_s=config.publish_timeout_s,
        limit="supervise.publish_timeout_s",
        hint="The engine takes weights between two tokens; rollouts.in_flight=finish also waits "
        "for every answer under way.",
    )


def checkpoint(config: SuperviseConfig, number: int) -> Wait:
    """One checkpoint or the export."""
    return waiting(
        "driver",
        f"the checkpoint of step {number}",
        deadline_s=config.checkpoint_timeout_s,
        limit="supervise.checkpoint_timeout_s",
        hint="The disk of output.dir may be full, slow or gone.",
    )


def evaluation(config: SuperviseConfig, engine: Engine, *, longest_silence_s: float) -> Wait:
    """One evaluation; every token is progress."""
    return waiting(
        "driver",
        "the evaluation",
        deadline_s=config.stall_s(longest_silence_s),
        limit="supervise.stall_timeout_s",
        hint=_ENGINE_HINT,
        progress=lambda: tokens(engine),
    )


def engine_tokens(config: SuperviseConfig, engine: Engine, *, longest_silence_s: float) -> Watch:
    """The engine, which computes tokens while it holds requests."""
    return Watch(
        "engine",
        "the next token of the requests that it runs",
        is_busy=lambda: is_at_work(engine),
        progress=lambda: tokens(engine),
        deadline_s=config.stall_s(longest_silence_s),
        limit="supervise.stall_timeout_s",
        hint=_ENGINE_HINT,
    )


def is_at_work(engine: Engine) -> bool:
    """Whether an engine holds requests and isn't asleep."""
    stats = engine.stats()
    return stats.running + stats.waiting > 0 and not stats.is_asleep


def tokens(engine: Engine) -> tuple[int, int]:
    """What an engine has computed so far: prompt tokens, sampled tokens."""
    stats = engine.stats()
    return stats.prefilled_tokens, stats.sampled_tokens
