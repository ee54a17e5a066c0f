"""What a run file may say about the trainer, its optimizer and its checkpoints (no torch here)."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from parity import checks

Dtype = Literal["float32", "bfloat16", "float16"]
ScheduleShape = Literal["constant", "linear", "cosine"]
PrefixSharing = Literal["auto", "off"]


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """`optimizer.name=adamw`: AdamW (Loshchilov and Hutter 2019)."""

    name: Literal["adamw"] = "adamw"
    lr: float = 1e-6  # peak learning rate, > 0
    beta1: float = 0.9  # in [0, 1)
    beta2: float = 0.95  # in [0, 1)
    eps: float = 1e-8  # > 0
    weight_decay: float = 0.0  # >= 0; matrices only, norms and biases are left alone

    def __post_init__(self) -> None:
        checks.above("lr", self.lr, 0.0)
        checks.within("beta1", self.beta1, 0.0, 0.9999999)
        checks.within("beta2", self.beta2, 0.0, 0.9999999)
        checks.above("eps", self.eps, 0.0)
        checks.at_least("weight_decay", self.weight_decay, 0.0)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over steps: linear warm-up, then `shape` down to `final_share` of the peak."""

    shape: ScheduleShape = "constant"
    warmup_steps: int = 0  # >= 0
    final_share: float = 0.0  # of the peak, in [0, 1]; unused by constant

    def __post_init__(self) -> None:
        checks.one_of("shape", self.shape, get_args(ScheduleShape))
        checks.at_least("warmup_steps", self.warmup_steps, 0)
        checks.within("final_share", self.final_share, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the trainer's ranks share a model: `replicate` x `shard` is their number."""

    replicate: int = 1  # copies of the model, each sharded; >= 1
    shard: int | None = None  # ranks that share one copy; null: all that are left
    cpu_offload: bool = False  # parameters, gradients and moments rest in the host's memory

    def __post_init__(self) -> None:
        checks.at_least("replicate", self.replicate, 1)
        if self.shard is not None:
            checks.at_least("shard", self.shard, 1)


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How a batch becomes one optimizer step."""

    max_tokens_per_micro_batch: int = 16384  # packed tokens of one forward pass, >= 1
    max_grad_norm: float | None = 1.0  # gradient clipping by global norm, > 0; null: off
    vocabulary_chunk: int = 16384  # logits held at once, in vocabulary entries, >= 1
    prefix_sharing: PrefixSharing = "auto"  # compute the prompt of a group once where it saves time
    gradient_checkpointing: bool = False
    dtype: Dtype = "float32"
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        checks.at_least("max_tokens_per_micro_batch", self.max_tokens_per_micro_batch, 1)
        if self.max_grad_norm is not None:
            checks.above("max_grad_norm", self.max_grad_norm, 0.0)
        checks.at_least("vocabulary_chunk", self.vocabulary_chunk, 1)
        checks.one_of("prefix_sharing", self.prefix_sharing, get_args(PrefixSharing))
        checks.one_of("dtype", self.dtype, get_args(Dtype))


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the whole training state is saved, and how many of them stay."""

    every_steps: int | None = None  # null: only at the end
    keep: int = 2  # newest complete checkpoints that stay, >= 1
    asynchronous: bool = False  # write a copy of the state while training goes on
    export: bool = True  # write a Hugging Face folder at the end of the run

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            checks.at_least("every_steps", self.every_steps, 1)
        checks.at_least("keep", self.keep, 1)
