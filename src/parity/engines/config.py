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


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """How requests are spread over several engines, and how one that fails is noticed."""

    max_retries: int = 2  # of a request whose replica failed, >= 0
    sticky_slack: int = 16  # requests that stickiness may keep above the least busy replica
    check_interval_s: float = 5.0  # between two health checks of a replica, > 0
    check_timeout_s: float = 10.0  # a replica that answers its check later leaves, > 0
    stall_timeout_s: float = 300.0  # it holds requests and computes no token for so long, > 0
    call_timeout_s: float = 120.0  # one pause, resume, abort, or part of a publication, > 0
    join_timeout_s: float = 1800.0  # publishing the current weights to a new replica, > 0

    def __post_init__(self) -> None:
        checks.at_least("max_retries", self.max_retries, 0)
        checks.at_least("sticky_slack", self.sticky_slack, 0)
        for key in (
            "check_interval_s",
            "check_timeout_s",
            "stall_timeout_s",
            "call_timeout_s",
            "join_timeout_s",
        ):
            value: float = getattr(self, key)
            checks.above(key, value, 0.0)
