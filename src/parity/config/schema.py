"""The whole run file as frozen dataclasses; loads without torch, Hydra or a device.

A section whose type is a union has one dataclass per `name`; `config/resolve.py` picks
it, so that a key of another implementation is refused as inapplicable.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from parity import checks
from parity.algorithms.config import (
    CorrectionConfig,
    EntropyConfig,
    GrpoAdvantageConfig,
    KlConfig,
    PpoClipLossConfig,
)
from parity.engines.config import EmbeddedEngineConfig
from parity.errors import ConfigError
from parity.ledger.config import LedgerConfig
from parity.models.config import ModelConfig
from parity.rewards.config import GraderConfig, RewardConfig, TaskRewardConfig
from parity.rollouts.config import RolloutsConfig, SamplingConfig
from parity.runtime.config import PlacementConfig, RuntimeName
from parity.supervise.config import SuperviseConfig
from parity.tasks.config import FileConfig, PromptsConfig, ReasoningGymConfig
from parity.training.config import AdamWConfig, CheckpointConfig, ScheduleConfig, TrainerConfig
from parity.weights.config import WeightsConfig

Display = Literal["auto", "live", "plain", "none"]
TasksConfig = ReasoningGymConfig | FileConfig


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out tasks: before the first step, every `every_steps`, and at the end."""

    every_steps: int | None = None  # null: only first and last
    num_tasks: int = 128  # >= 1
    samples_per_task: int = 1  # answers per task, for pass@k and majority vote, >= 1
    temperature: float = 0.0  # 0: greedy
    tasks: TasksConfig | None = None  # null: the training source, rows that training never sees

    def __post_init__(self) -> None:
        if self.every_steps is not None:
            checks.at_least("every_steps", self.every_steps, 1)
        checks.at_least("num_tasks", self.num_tasks, 1)
        checks.at_least("samples_per_task", self.samples_per_task, 1)
        checks.at_least("temperature", self.temperature, 0.0)


@dataclass(frozen=True, kw_only=True)
class ThreadsConfig:
    """CPU threads per role; null: from the cores at hand (docs/asynchrony.md)."""

    trainer: int | None = None
    engine: int | None = None

    def __post_init__(self) -> None:
        for key, value in (("trainer", self.trainer), ("engine", self.engine)):
            if value is not None:
                checks.at_least(key, value, 1)


@dataclass(frozen=True, kw_only=True)
class TrackersConfig:
    """Where metrics go: any of jsonl, tensorboard, wandb, mlflow, trackio."""

    names: tuple[str, ...] = ("jsonl", "tensorboard")
    project: str = "parity"  # project or experiment name for the hosted ones
    dump_episodes: bool = True  # write every episode to episodes/*.jsonl


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """Where the run folder is made."""

    dir: str = "runs"  # parent folder, relative to the working directory
    name: str | None = None  # folder name; null: recipe, date and time

    def __post_init__(self) -> None:
        if self.name is not None and (self.name in ("", ".", "..") or "/" in self.name):
            raise ConfigError(
                f"name is {self.name!r}; it must be a plain folder name, and dir says where."
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """`parity train`: everything a reinforcement-learning run needs."""

    seed: int = 0
    steps: int = 100  # optimizer steps of the whole run, >= 1
    time_limit_s: float | None = None  # training stops after it and the run ends well; null: none
    display: Display = "auto"
    platform: str = "auto"
    runtime: RuntimeName = "inline"
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tasks: TasksConfig = field(default_factory=ReasoningGymConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    reward: RewardConfig = field(default_factory=TaskRewardConfig)
    grader: GraderConfig = field(default_factory=GraderConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EmbeddedEngineConfig = field(default_factory=EmbeddedEngineConfig)
    rollouts: RolloutsConfig = field(default_factory=RolloutsConfig)
    advantage: GrpoAdvantageConfig = field(default_factory=GrpoAdvantageConfig)
    loss: PpoClipLossConfig = field(default_factory=PpoClipLossConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    optimizer: AdamWConfig = field(default_factory=AdamWConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    trackers: TrackersConfig = field(default_factory=TrackersConfig)
    threads: ThreadsConfig = field(default_factory=ThreadsConfig)
    supervise: SuperviseConfig = field(default_factory=SuperviseConfig)

    def __post_init__(self) -> None:
        checks.at_least("seed", self.seed, 0)
        checks.at_least("steps", self.steps, 1)
        if self.time_limit_s is not None:
            checks.above("time_limit_s", self.time_limit_s, 0.0)
        checks.one_of("display", self.display, get_args(Display))
        checks.one_of("runtime", self.runtime, get_args(RuntimeName))


@dataclass(frozen=True, kw_only=True)
class AnswerStyle:
    """One way in which SFT writes an answer, with how often it is drawn.

    `transform` names how the task's answer is changed before `template` (which may use
    `{answer}`) puts it into words.
    """

    weight: float = 1.0  # > 0
    template: str = "{answer}"
    transform: Literal["none", "reverse", "shuffle", "swap", "drop"] = "none"

    def __post_init__(self) -> None:
        checks.above("weight", self.weight, 0.0)


@dataclass(frozen=True, kw_only=True)
class TinyModelConfig:
    """A small Qwen3-style model with a character tokenizer and random weights."""

    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 4
    num_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_length: int = 512


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """`parity sft`: supervised fine-tuning on a source's own answers."""

    seed: int = 0
    steps: int = 300
    batch_size: int = 128  # examples per optimizer step, >= 1
    display: Display = "auto"
    platform: str = "auto"
    output: OutputConfig = field(default_factory=OutputConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tiny_model: TinyModelConfig | None = None  # set: start from it instead of model.path
    tasks: TasksConfig = field(default_factory=ReasoningGymConfig)
    prompts: PromptsConfig = field(default_factory=PromptsConfig)
    answers: tuple[AnswerStyle, ...] = (AnswerStyle(),)
    reward: RewardConfig = field(default_factory=TaskRewardConfig)
    grader: GraderConfig = field(default_factory=GraderConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EmbeddedEngineConfig = field(default_factory=EmbeddedEngineConfig)
    optimizer: AdamWConfig = field(default_factory=lambda: AdamWConfig(lr=1e-3))
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    trackers: TrackersConfig = field(default_factory=TrackersConfig)
    threads: ThreadsConfig = field(default_factory=ThreadsConfig)
    supervise: SuperviseConfig = field(default_factory=SuperviseConfig)

    def __post_init__(self) -> None:
        checks.at_least("seed", self.seed, 0)
        checks.at_least("steps", self.steps, 1)
        checks.at_least("batch_size", self.batch_size, 1)
        if self.checkpoint.asynchronous:
            raise ConfigError(
                "checkpoint.asynchronous is true, but supervised training saves at its end alone,"
                " with nothing beside it; leave the key out."
            )
