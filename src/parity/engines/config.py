"""What a run file may say about the engine (no torch here)."""

from dataclasses import dataclass
from typing import Literal, get_args

from parity import checks

EngineDtype = Literal["float32", "bfloat16", "float16"]
ForwardPath = Literal["auto", "lean", "generic"]


@dataclass(frozen=True, kw_only=True)
class EmbeddedEngineConfig:
    """`engine.name=embedded`: Parity's own engine, in the process that asks."""

    name: Literal["embedded"] = "embedded"
    max_concurrent: int = 256  # requests decoded side by side, >= 1
    max_length: int | None = None  # prompt + answer tokens of one request; null: derived
    prefill_tokens: int = 8192  # prompt tokens of one forward pass, >= 1
    dtype: EngineDtype = "float32"
    forward: ForwardPath = "auto"  # auto: the lean path where the model family has one

    def __post_init__(self) -> None:
        checks.at_least("max_concurrent", self.max_concurrent, 1)
        if self.max_length is not None:
            checks.at_least("max_length", self.max_length, 2)
        checks.at_least("prefill_tokens", self.prefill_tokens, 1)
        checks.one_of("dtype", self.dtype, get_args(EngineDtype))
        checks.one_of("forward", self.forward, get_args(ForwardPath))
