"""The roles of a run made from its configuration, in whichever process they live.

Used by `parts.py` and `build.py` in one process, and by the actors of `runtime/ray/`: so what a
trainer or an engine is made of doesn't depend on where it runs.
"""

import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from parity.algorithms.losses.loss import load_loss
from parity.algorithms.objective import PolicyObjective
from parity.config.schema import SftConfig, TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines import ENGINES
from parity.engines.embedded.engine import EmbeddedEngine
from parity.engines.engine import Engine
from parity.errors import UnsupportedError
from parity.models.loading import load_model, load_tokenizer
from parity.models.rendering import Renderer, eos_token_ids
from parity.models.streaming import WeightStream, load_streamed
from parity.models.tiny import make_tiny
from parity.training.parallel.ranks import Ranks
from parity.training.trainer import Trainer

log = logging.getLogger(__name__)
AnyConfig = TrainConfig | SftConfig


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


def load_spread(
    config: TrainConfig, device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, WeightStream | None]:
    """As `load`, for one of several ranks: a model without memory, and what fills its part.

    None with a whole model where its files can't be read in parts.
    """
    tokenizer = load_tokenizer(config.model)
    model, stream = load_streamed(config.model, dtype="float32", device=device, tokenizer=tokenizer)
    return model, tokenizer, stream


def stop_ids(
    config: AnyConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """The ids that end an answer, sorted."""
    eos_tokens = config.model.eos_tokens
    return tuple(sorted(eos_token_ids(model.generation_config, tokenizer, eos_tokens=eos_tokens)))


def make_trainer(
    config: TrainConfig,
    model: PreTrainedModel,
    *,
    device: torch.device,
    ranks: Ranks | None = None,
    rest_dir: Path | None = None,
    stream: WeightStream | None = None,
) -> Trainer:
    """The trainer of the run file, taking over `model`; one of `ranks` where there are several.

    `stream` fills a `model` that has no memory (`load_spread`).
    """
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
        ranks=ranks,
        rest_dir=rest_dir,
        stream=stream,
    )


def open_engine(
    config: AnyConfig,
    model: PreTrainedModel,
    renderer: Renderer,
    stop: tuple[int, ...],
    *,
    threads: ThreadPlan,
    version: int,
    rest_dir: Path | None = None,
) -> Engine:
    """The engine of the run file, serving a copy of `model`."""
    kind = ENGINES.load(config.engine.name)
    if not (isinstance(kind, type) and issubclass(kind, EmbeddedEngine)):
        raise UnsupportedError(
            f"engine.name={config.engine.name!r} isn't built on the embedded engine, the only kind "
            "that Parity can start; subclass EmbeddedEngine or choose embedded."
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
        rest_dir=rest_dir,
    )


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
