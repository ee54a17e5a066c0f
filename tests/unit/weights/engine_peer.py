"""A real engine in a process of its own, which takes weights through a receiver; for tests.

`serve` answers one word at a time: `generate` (a prompt and how to sample follow) gives a
completion, `spoil` makes the next load store one wrong element, `failures` tells why
publications were aborted.
"""

import asyncio
import threading
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from parity.engines.config import EmbeddedEngineConfig
from parity.engines.embedded.engine import EmbeddedEngine
from parity.weights.disk import DiskReceiver
from parity.weights.host.endpoints import RunDirectory
from parity.weights.session.engine_store import EngineStore
from parity.weights.zmq_ipc import ZmqReceiver

MAX_LENGTH = 64
SPOILED = "model.layers.0.self_attn.q_proj.weight"  # the lean engine keeps it inside a fused one


def model(seed: int) -> PreTrainedModel:
    """A tied model; another seed gives other weights."""
    torch.manual_seed(seed)
    made = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=48,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=128,
            initializer_range=0.2,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    return made.eval()


class Spoiling(EmbeddedEngine):
    """Stores something else than it was given, when told to."""

    spoils = False

    async def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        taken = list(tensors)
        await super().load(taken)
        if self.spoils and any(name == SPOILED for name, _ in taken):
            stored = self.staged_weights()[SPOILED]
            stored[(0,) * stored.dim()] += 1.0
            self.spoils = False


def engine_of(made: PreTrainedModel) -> Spoiling:
    return Spoiling(
        made,
        config=EmbeddedEngineConfig(),
        max_length=MAX_LENGTH,
        eos_token_ids=(),
        decode=None,
        device=torch.device("cpu"),
        threads=1,
    )


def serve(transport: str, where: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    engine = engine_of(model(0))
    store = EngineStore(engine, loop, timeout_s=20)
    if transport == "zmq_ipc":
        receiver = ZmqReceiver(RunDirectory.join(Path(where)), store, replica=0, local_rank=0)
    else:
        receiver = DiskReceiver(Path(where), store, name="engine", look_s=0.005)
    pipe.send("ready")
    while (word := pipe.recv()) != "end":
        if word == "spoil":
            engine.spoils = True
            pipe.send(word)
        elif word == "failures":
            pipe.send(tuple(receiver.failures))
        else:
            answer = engine.generate(*pipe.recv())
            pipe.send(asyncio.run_coroutine_threadsafe(answer, loop).result(20))
    receiver.close()
    asyncio.run_coroutine_threadsafe(engine.close(), loop).result(20)
    pipe.send("closed")
