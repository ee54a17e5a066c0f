"""What follows from a config before anything starts: derived numbers, and whether they add up.

Used by the command line (`parity config` prints the numbers) and by the wiring, which takes
them from here and computes none again. Needs no torch, model or device. Invariant: a config
that passed `check` can be run as far as arithmetic tells.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from parity.config.replicas import check_replicas, differing
from parity.config.resolve import resolve_union
from parity.config.schema import RewardConfig, SftConfig, TasksConfig, TrainConfig
from parity.config.threads import ThreadPlan, plan
from parity.errors import ConfigError
from parity.rewards.config import PythonRewardConfig, SumRewardConfig
from parity.rewards.named import check_function
from parity.runtime.config import PlacementConfig
from parity.runtime.placement import processes_per_node, table
from parity.tasks.config import FileConfig
from parity.training.config import ParallelConfig


@dataclass(frozen=True, slots=True)
class Derived:
    """The numbers of a training run that follow from its config."""

    episodes_per_step: int
    capacity_groups: int  # groups in flight at most
    capacity_episodes: int
    max_token_age: int  # versions between sampling a token and training on it, at most
    engine_slots: int  # requests decoded side by side at most
    max_episode_tokens: int  # prompt and answer
    max_tokens_per_step: int
    publications: int  # the starting weights included
    total_groups: int
    total_episodes: int
    evaluations: int
    eval_episodes: int  # answers of one evaluation
    threads: ThreadPlan
    placement: tuple[str, ...]  # one line per node; empty where all is one process
    notes: tuple[str, ...]  # what is allowed, but may not be what was meant


@dataclass(frozen=True, slots=True)
class SftDerived:
    """The numbers of a supervised run that follow from its config."""

    total_examples: int
    max_example_tokens: int
    max_tokens_per_step: int
    evaluations: int
    eval_episodes: int
    threads: ThreadPlan
    notes: tuple[str, ...]


def derive(config: TrainConfig, *, cores: int, environment: int | None) -> Derived:
    """The numbers; `cores` are usable CPU cores, `environment` is OMP_NUM_THREADS."""
    rollouts, engine = config.rollouts, config.engine
    capacity_episodes = rollouts.capacity * rollouts.group_size
    episode_tokens = config.prompts.max_prompt_tokens + config.sampling.max_new_tokens
    episodes_per_step = rollouts.groups_per_step * rollouts.group_size
    return Derived(
        episodes_per_step=episodes_per_step,
        capacity_groups=rollouts.capacity,
        capacity_episodes=capacity_episodes,
        max_token_age=math.ceil(rollouts.max_lag),
        engine_slots=min(engine.max_concurrent, capacity_episodes),
        max_episode_tokens=episode_tokens,
        max_tokens_per_step=episodes_per_step * episode_tokens,
        publications=1 + config.steps // rollouts.steps_per_publish,
        total_groups=config.steps * rollouts.groups_per_step,
        total_episodes=config.steps * episodes_per_step,
        evaluations=_evaluations(config),
        eval_episodes=config.eval.num_tasks * config.eval.samples_per_task,
        threads=thread_plan(config, cores=cores, environment=environment),
        placement=tuple(_placement(config, cores)),
        notes=tuple(_notes(config)),
    )


def derive_sft(config: SftConfig, *, cores: int, environment: int | None) -> SftDerived:
    """The numbers of a supervised run."""
    tokens = config.prompts.max_prompt_tokens + config.sampling.max_new_tokens
    threads = config.threads
    return SftDerived(
        total_examples=config.steps * config.batch_size,
        max_example_tokens=tokens,
        max_tokens_per_step=config.batch_size * tokens,
        evaluations=_evaluations(config),
        eval_episodes=config.eval.num_tasks * config.eval.samples_per_task,
        threads=plan(cores, 0.0, threads.trainer, threads.engine, environment),
        notes=tuple(_interval_notes(config)),
    )


def check(config: TrainConfig | SftConfig) -> None:
    """Refuse (ConfigError) what can't work or has no effect across sections."""
    _check_model(config)
    _check_tasks(config.tasks, "tasks")
    if config.eval.tasks is not None:
        _check_tasks(config.eval.tasks, "eval.tasks")
    _check_reward(config.reward, "reward")
    _check_lengths(config)
    _check_eval(config)
    _check_schedule(config)
    if isinstance(config, TrainConfig):
        _check_lag(config)
        _check_publications(config)
        _check_transport(config)
        _check_placement(config)
        _check_algorithm(config)


def thread_plan(config: TrainConfig, *, cores: int, environment: int | None) -> ThreadPlan:
    """CPU threads of each process, where one node has `cores` of them."""
    ranks, replicas = processes(config)
    return plan(
        cores,
        config.rollouts.max_lag,
        config.threads.trainer,
        config.threads.engine,
        environment,
        ranks=ranks,
        replicas=replicas,
    )


def processes(config: TrainConfig | SftConfig) -> tuple[int, int]:
    """Most (trainer ranks, engine replicas) that share the cores of one node."""
    if isinstance(config, SftConfig) or config.runtime == "inline":
        return 1, 1
    return processes_per_node(config.placement)


def in_one_process(config: TrainConfig) -> TrainConfig:
    """The same for what needs no training: all of it inline, whatever trained the model."""
    trainer = replace(config.trainer, parallel=ParallelConfig())
    return replace(config, runtime="inline", placement=PlacementConfig(), trainer=trainer)


def _placement(config: TrainConfig, cores: int) -> list[str]:
    if config.runtime == "inline":
        return []
    return table(config.placement, cores=cores).lines()


def _evaluations(config: TrainConfig | SftConfig) -> int:
    """Before the first step, every `every_steps`, and after the last."""
    every = config.eval.every_steps
    between = 0 if every is None else (config.steps - 1) // every
    return 2 + between


def _check_model(config: TrainConfig | SftConfig) -> None:
    path = config.model.path
    if isinstance(config, SftConfig) and config.tiny_model is not None:
        if path is not None:
            raise ConfigError(
                f"model.path is {path!r} and tiny_model is set, and a run starts from one of"
                " them; set tiny_model=null or model.path=null."
            )
        return
    if path is None:
        raise ConfigError(
            "model.path is missing; set model.path=FOLDER, model.path=HUB/NAME, or"
            " model.path=parity://quickstart for the model that ships with Parity."
        )
    is_folder = path.startswith(("/", "./", "../", "~"))
    if is_folder and not Path(path).expanduser().exists():
        raise ConfigError(
            f"model.path is {path!r}, which doesn't exist (looked from {Path.cwd()});"
            " give the folder of a Hugging Face model."
        )


def _check_tasks(tasks: TasksConfig, section: str) -> None:
    if not isinstance(tasks, FileConfig):
        return
    if tasks.path is None:
        raise ConfigError(f"{section}.path is missing; set {section}.path=FILE.{tasks.name}.")
    if not Path(tasks.path).expanduser().is_file():
        raise ConfigError(
            f"{section}.path is {tasks.path!r}, and there is no such file"
            f" (looked from {Path.cwd()}); give the path of a {tasks.name} file."
        )


def _check_reward(reward: object, at: str) -> None:
    """Resolve the parts of a sum, which the schema leaves open, as the sections that they are.

    A function of the user's is looked for too.
    """
    if isinstance(reward, PythonRewardConfig):
        check_function(reward, at=at)
    if isinstance(reward, SumRewardConfig):
        for index, part in enumerate(reward.parts):
            section = {key: value for key, value in part.items() if key not in ("weight", "label")}
            place = f"{at}.parts.{index}"
            _check_reward(resolve_union(RewardConfig, section, at=place), place)


def _check_lengths(config: TrainConfig | SftConfig) -> None:
    tokens = config.prompts.max_prompt_tokens + config.sampling.max_new_tokens
    limit = config.engine.max_length
    if limit is not None and tokens > limit:
        raise ConfigError(
            f"engine.max_length is {limit}, but prompts.max_prompt_tokens +"
            f" sampling.max_new_tokens is {tokens}; set engine.max_length={tokens} or null."
        )


def _check_eval(config: TrainConfig | SftConfig) -> None:
    if config.eval.temperature == 0 and config.eval.samples_per_task > 1:
        raise ConfigError(
            f"eval.samples_per_task is {config.eval.samples_per_task} with eval.temperature=0,"
            " and greedy answers to one task are all the same;"
            " set eval.samples_per_task=1 or eval.temperature=1."
        )


def _check_schedule(config: TrainConfig | SftConfig) -> None:
    schedule = config.schedule
    if schedule.warmup_steps >= config.steps:
        raise ConfigError(
            f"schedule.warmup_steps is {schedule.warmup_steps} with steps={config.steps}, so the"
            f" learning rate never arrives; set schedule.warmup_steps below {config.steps}."
        )
    if schedule.shape == "constant" and schedule.final_share != 0.0:
        raise ConfigError(
            f"schedule.final_share is {schedule.final_share} and has no effect with"
            " schedule.shape=constant; set schedule.shape=linear or cosine, or"
            " schedule.final_share=0."
        )


def _check_lag(config: TrainConfig) -> None:
    rollouts = config.rollouts
    groups = rollouts.groups_per_step * rollouts.steps_per_publish
    assert rollouts.capacity >= groups, f"capacity {rollouts.capacity} < {groups} groups"
    if rollouts.max_lag > 0 and rollouts.capacity == groups:
        raise ConfigError(
            f"rollouts.max_lag is {rollouts.max_lag}, and of {groups} groups per publication that"
            " is less than one group ahead, which is synchronous; set rollouts.max_lag=0, or"
            f" rollouts.max_lag={-(-1000 // groups) / 1000:g} or more."
        )


def _check_publications(config: TrainConfig) -> None:
    every = config.rollouts.steps_per_publish
    if config.steps % every:
        below, above = config.steps // every * every, -(-config.steps // every) * every
        choices = f"steps={above}" if below == 0 else f"steps={below} or steps={above}"
        raise ConfigError(
            f"steps is {config.steps}, not a multiple of rollouts.steps_per_publish={every},"
            f" so the last steps would never be published; set {choices}."
        )
    for key, interval in (
        ("eval.every_steps", config.eval.every_steps),
        ("checkpoint.every_steps", config.checkpoint.every_steps),
    ):
        if interval is not None and interval % every:
            raise ConfigError(
                f"{key} is {interval}, not a multiple of rollouts.steps_per_publish={every};"
                " between publications the engine serves older weights than the trainer holds, so"
                f" set {key}={-(-interval // every) * every}."
            )


def _check_transport(config: TrainConfig) -> None:
    transport = config.weights.transport
    if config.runtime == "inline" and transport not in ("auto", "direct"):
        raise ConfigError(
            f"weights.transport is {transport!r} with runtime=inline, where trainer and engine are"
            " one process and weights are copied inside it; set weights.transport=auto or direct."
        )
    if config.runtime == "inline" and config.weights.verify == "canary":
        raise ConfigError(
            "weights.verify is 'canary' with runtime=inline, and an engine in the trainer's process"
            " can't score with weights that it doesn't serve yet; set weights.verify=digests."
        )


def _check_placement(config: TrainConfig) -> None:
    """The inline runtime is one process; elsewhere replicate x shard is the number of ranks."""
    parallel, placement = config.trainer.parallel, config.placement
    if placement.takes_turns and config.rollouts.max_lag > 0:
        raise ConfigError(
            f"placement.kind is {placement.kind!r} with"
            f" rollouts.max_lag={config.rollouts.max_lag:g}, and engine and trainer that take"
            " turns can't work at the same time; set rollouts.max_lag=0, or placement.kind=apart."
        )
    if config.runtime == "inline":
        kind = "colocated" if placement.kind == "colocated" else "apart"
        for key, value, default in (
            ("placement", placement, PlacementConfig(kind=kind)),
            ("trainer.parallel", parallel, ParallelConfig()),
        ):
            for changed, found in differing(value, default):
                raise ConfigError(
                    f"{key}.{changed} is {found!r} with runtime=inline, where everything is one"
                    " process; set runtime=ray, or leave the key out."
                )
        return
    check_replicas(placement)
    if config.weights.transport == "direct":
        raise ConfigError(
            "weights.transport is 'direct' with runtime=ray, where trainer and engine are"
            " different processes; set weights.transport=auto."
        )
    processes_per_node(placement)
    ranks, shard = placement.trainer_ranks, parallel.shard
    if ranks % parallel.replicate or shard not in (None, ranks // parallel.replicate):
        raise ConfigError(
            f"trainer.parallel.replicate is {parallel.replicate} and trainer.parallel.shard is"
            f" {shard}, but placement.trainer_ranks is {ranks}, and replicate x shard must be the"
            " number of ranks; set trainer.parallel.shard=null to take what is left."
        )


def _check_algorithm(config: TrainConfig) -> None:
    correction = config.correction.beside(config.loss.old_logprobs)
    if config.loss.old_logprobs == "rollout" and correction.level != "off":
        raise ConfigError(
            "loss.old_logprobs is 'rollout', whose ratio already holds the difference between"
            f" engine and trainer, and correction.level is {config.correction.level!r}, which would"
            " count it twice; set correction.level=auto or loss.old_logprobs=trainer."
        )
    drops = config.rollouts.max_drops_per_step
    if drops is not None and not config.rollouts.drop_zero_spread:
        raise ConfigError(
            f"rollouts.max_drops_per_step is {drops} and has no effect with"
            " rollouts.drop_zero_spread=false; set rollouts.drop_zero_spread=true, or"
            " rollouts.max_drops_per_step=null."
        )


def _interval_notes(config: TrainConfig | SftConfig) -> Iterator[str]:
    for key, every in (
        ("eval.every_steps", config.eval.every_steps),
        ("checkpoint.every_steps", config.checkpoint.every_steps),
    ):
        if every is not None and every >= config.steps:
            yield f"{key}={every} is not below steps={config.steps}: only at the end"


def _notes(config: TrainConfig) -> Iterator[str]:
    rollouts, engine = config.rollouts, config.engine
    yield from _interval_notes(config)
    episodes = rollouts.capacity * rollouts.group_size
    if engine.max_concurrent < episodes:
        yield (
            f"engine.max_concurrent={engine.max_concurrent} is below the {episodes} episodes in"
            " flight: the rest waits for a slot"
        )
    ahead = rollouts.groups_per_step * rollouts.steps_per_publish * rollouts.max_lag
    if ahead != int(ahead) and int(ahead) > 0:
        yield (
            f"rollouts.max_lag={rollouts.max_lag} is {ahead:g} groups ahead, rounded down to"
            f" {rollouts.capacity - rollouts.groups_per_step * rollouts.steps_per_publish}"
        )
    if rollouts.group_size == 1:
        yield (
            "rollouts.group_size=1: advantages compare the siblings of a group, and a group of one"
            " teaches nothing; set rollouts.group_size=2 or more"
        )
