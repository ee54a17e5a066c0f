"""How a replica's process builds its engine; another opener stands in for tests and benchmarks."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.engines.engine import Engine
from parity.models.rendering import Renderer
from parity.roles import load, open_engine, stop_ids

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine, and the ids that end an answer."""

    engine: Engine
    stop_token_ids: tuple[int, ...]


class Opener(Protocol):
    """Builds the engine; a function of a module that the replica's process can import."""

    def __call__(
        self,
        config: TrainConfig,
        *,
        device: "torch.device",
        threads: int,
        version: int,
        rest_dir: Path,
    ) -> Opened:
        """The engine of the run file, serving the model of the run file as `version`.

        `rest_dir` is where weights of a CPU rest while it sleeps.
        """
        ...


def open_embedded(
    config: TrainConfig, *, device: "torch.device", threads: int, version: int, rest_dir: Path
) -> Opened:
    """The embedded engine, exactly as one process would build it."""
    model, tokenizer = load(config, device)
    renderer = Renderer(
        tokenizer,
        chat_template=config.model.chat_template,
        eos_tokens=config.model.eos_tokens,
    )
    stop = stop_ids(config, model, tokenizer)
    plan = ThreadPlan(threads, threads, "of this replica")
    opening = partial(open_engine, config, model, renderer, stop)
    return Opened(opening(threads=plan, version=version, rest_dir=rest_dir), stop)
