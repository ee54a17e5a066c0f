"""`python resident.py OUT`: twenty-two turns of a real engine and trainer, and what was resident.

Run by `test_colocated.py` in a process of its own, because the memory of a test process is of
everything that ran before. Writes, per turn, the resident bytes before and after each change.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from unit.training.tiny import VOCABULARY, ragged_samples, tiny_model, tiny_trainer

from parity.engines.config import EmbeddedEngineConfig
from parity.engines.embedded.engine import EmbeddedEngine
from parity.runtime.inline import InlineRuntime
from parity.runtime.turns import OwnMemory, TakingTurns
from parity.types import Sampling
from parity.weights.direct import DirectTransfer

TURNS = 22
CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


async def commit(change: Callable[[], object]) -> None:
    """As `in_flight=continue`."""
    await change()  # pyright: ignore[reportGeneralTypeIssues]


async def turns(folder: Path) -> dict[str, object]:
    """Generate, step, publish, again and again."""
    torch.set_num_threads(1)
    trainer = tiny_trainer(tiny_model(**SHAPE), rest_dir=folder)
    size = sum(tensor.nbytes for _, tensor in trainer.named_weights())
    engine = EmbeddedEngine(
        trainer.model,
        config=EmbeddedEngineConfig(max_concurrent=32),
        max_length=64,
        eos_token_ids=(),
        decode=None,
        device=CPU,
        threads=1,
        rest_dir=folder,
    )
    inline = InlineRuntime(trainer_threads=1)
    taking = TakingTurns(
        inline,
        engines=[engine],
        trainer=trainer,
        deadline_s=600,
        memory=OwnMemory(CPU),
    )
    transfer = DirectTransfer([engine])
    told: list[dict[str, float]] = []
    await taking.engines_turn()
    for number in range(TURNS):
        await generate(engine)
        samples = ragged_samples(seed=number)
        await taking.in_trainer(partial(trainer.step, samples))
        await transfer.publish(trainer.weights(), version=number + 1, switch=commit)
        metrics = await taking.engines_turn()
        told.append(
            {
                name.removeprefix("device/").removesuffix("_bytes"): value
                for name, value in metrics.items()
                if name.startswith("device/")
            }
        )
    await engine.close()
    await taking.close()
    return {"turns": told, "state_bytes": 3 * size, "served_bytes": size}


async def generate(engine: EmbeddedEngine) -> Sequence[object]:
    """Thirty-two answers, each of another prompt."""
    sampling = Sampling(max_new_tokens=8, seed=1)
    prompts = [tuple((n * 7 + k) % VOCABULARY for k in range(24)) for n in range(32)]
    return await asyncio.gather(*(engine.generate(tokens, sampling) for tokens in prompts))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.write_text(json.dumps(asyncio.run(turns(out.parent))))
