"""THE table of metrics: each name that a run may record, once, with unit and meaning.

Trackers, displays, advice and docs read it. Invariant: a name that isn't covered here is a
mistake; `check` says so with the nearest known one. Plug-ins record under `plugin/`.
"""

from collections.abc import Iterable, Mapping, Sequence

from parity.errors import ConfigError
from parity.observe.metric import Accumulator, Metric
from parity.registry import nearest

_TRAIN = (
    Metric("train/loss", "", "mean", "loss that was differentiated, per its aggregation"),
    Metric("train/grad_norm", "", "mean", "global gradient norm before clipping"),
    Metric("train/learning_rate", "", "last", "learning rate of the step"),
    Metric("train/ppo_kl", "nat", "mean", "KL of old to new policy over trained tokens (k1)"),
    Metric("train/clip_fraction", "share", "share", "trained tokens whose ratio was clipped"),
    Metric("train/entropy", "nat", "mean", "entropy of the policy per trained token"),
    Metric("train/kl_reference", "nat", "mean", "KL to the frozen reference per trained token"),
    Metric(
        "train/train_rollout_logprob_abs_diff",
        "nat",
        "mean",
        "mean |log-prob of trainer - log-prob of engine| per trained token",
    ),
    Metric("train/train_rollout_kl", "nat", "mean", "KL of engine to trainer (k3) per token"),
    Metric("train/correction_weight", "", "mean", "mean importance weight after the cap"),
    Metric("train/correction_truncated_share", "share", "share", "weights that the cap cut"),
    Metric("train/tokens", "token", "sum", "trained tokens (loss mask on, advantage not 0)"),
    Metric("train/trained_tokens_mean", "token", "mean", "tokens under the loss mask per sample"),
    Metric("train/computed_tokens", "token", "sum", "tokens in forward passes, padding included"),
    Metric("train/padding_share", "share", "share", "computed tokens that were padding"),
    Metric("train/prefix_shared_share", "share", "share", "prompt tokens not computed again"),
    Metric("train/skipped_steps", "step", "sum", "steps without anything to train on"),
    Metric("train/step_s", "s", "sum", "seconds inside the trainer's step"),
)
_ROLLOUT = (
    Metric("rollout/raw_reward", "", "mean", "mean reward over scored episodes"),
    Metric("rollout/reward_std", "", "mean", "population spread of reward over scored episodes"),
    Metric("rollout/reward_part_*", "", "mean", "mean of a named part over scored episodes"),
    Metric("rollout/scored_share", "share", "share", "episodes with a reward"),
    Metric("rollout/unscored_share", "share", "share", "episodes that can't be graded"),
    Metric("rollout/failed_share", "share", "share", "episodes whose engine or grader broke"),
    Metric(
        "rollout/engine_failures",
        "episode",
        "sum",
        "since the last step: given up since the engine broke or was late, dropped groups included",
    ),
    Metric(
        "rollout/grader_failures",
        "episode",
        "sum",
        "since the last step: given up since the grader broke, dropped groups included",
    ),
    Metric("rollout/retries", "episode", "sum", "tries after the first, since the last step"),
    Metric("rollout/zero_spread_share", "share", "share", "groups whose rewards are all equal"),
    Metric("rollout/dropped_groups", "group", "sum", "groups dropped since the last step"),
    Metric("rollout/response_tokens_mean", "token", "mean", "generated tokens per episode"),
    Metric("rollout/response_tokens_max", "token", "max", "generated tokens, longest episode"),
    Metric("rollout/prompt_tokens_mean", "token", "mean", "prompt tokens per episode, as sent"),
    Metric("rollout/truncated_share", "share", "share", "episodes cut at the token limit"),
    Metric(
        "rollout/length_bias",
        "",
        "last",
        "P(trained answer longer than an issued one) - P(shorter); below 0: short ones favoured",
    ),
    Metric("rollout/length_bias_p", "", "last", "its p-value (Mann-Whitney, by group)"),
    Metric("rollout/lag_mean", "version", "mean", "trainer version minus token version"),
    Metric("rollout/lag_max", "version", "max", "largest lag of a trained token"),
    Metric("rollout/tokens_per_s", "token/s", "mean", "sampled tokens per second of the step"),
)
_TIME = (
    Metric("time/step_s", "s", "sum", "seconds from the end of the last step to the end of this"),
    Metric("time/generate_share", "share", "share", "of the step: the engine was busy"),
    Metric("time/train_share", "share", "share", "of the step: the trainer was busy"),
    Metric("time/wait_share", "share", "share", "of the step: the trainer waited for groups"),
    Metric("time/engine_idle_share", "share", "share", "of the step: the engine was idle"),
    Metric("time/publish_s", "s", "sum", "seconds in which weights were published"),
    Metric("time/eval_s", "s", "sum", "seconds of evaluation"),
    Metric("time/checkpoint_s", "s", "sum", "seconds in which a checkpoint was saved"),
    Metric("time/sleep_s", "s", "sum", "colocated: seconds until the engine had let go"),
    Metric("time/reload_s", "s", "sum", "colocated: seconds until the trainer was loaded"),
    Metric("time/offload_s", "s", "sum", "colocated: seconds until the trainer had let go"),
    Metric("time/wake_s", "s", "sum", "colocated: seconds until the engine was awake"),
    Metric(
        "time/tokens_per_s",
        "token/s",
        "mean",
        "prompt and response tokens of the trained episodes, each once, per second of the step",
    ),
)
_BUFFER = (
    Metric("buffer/issued", "group", "last", "groups begun since the start of the run"),
    Metric("buffer/trained", "group", "last", "of these: trained"),
    Metric("buffer/dropped", "group", "last", "of these: dropped with a reason"),
    Metric("buffer/failed", "group", "last", "of these: failed with a reason"),
    Metric("buffer/in_flight", "group", "last", "of these: issued and not yet decided"),
)
_EVAL = (
    Metric("eval/accuracy", "share", "share", "correct answers among scored ones"),
    Metric("eval/accuracy_low", "share", "last", "lower end of its 95 % interval"),
    Metric("eval/accuracy_high", "share", "last", "upper end of its 95 % interval"),
    Metric("eval/mean_reward", "", "mean", "mean reward over scored answers"),
    Metric("eval/pass_at_*", "share", "share", "chance that one of k answers is right (unbiased)"),
    Metric("eval/pass_at_low_*", "share", "last", "lower end of its 95 % bootstrap interval"),
    Metric("eval/pass_at_high_*", "share", "last", "upper end of its 95 % bootstrap interval"),
    Metric("eval/majority_vote", "share", "share", "tasks whose most frequent answer is right"),
    Metric("eval/tasks", "task", "last", "tasks with at least one scored answer"),
    Metric("eval/scored_share", "share", "share", "answers with a reward"),
    Metric("eval/unscored", "answer", "last", "answers that can't be graded"),
    Metric("eval/unscored_share", "share", "share", "their share of all answers"),
    Metric("eval/unscored_share_low", "share", "last", "lower end of its 95 % interval"),
    Metric("eval/unscored_share_high", "share", "last", "upper end of its 95 % interval"),
    Metric("eval/failed", "answer", "last", "answers whose engine or grader broke"),
    Metric("eval/failed_share", "share", "share", "their share of all answers"),
    Metric("eval/failed_share_low", "share", "last", "lower end of its 95 % interval"),
    Metric("eval/failed_share_high", "share", "last", "upper end of its 95 % interval"),
    Metric("eval/response_tokens_mean", "token", "mean", "generated tokens per answer"),
    Metric("eval/truncated_share", "share", "share", "answers cut at the token limit"),
)
_DEVICE = (  # of the run's own devices, as read last; absent where no device says it
    Metric("device/utilization", "share", "share", "mean share of time that a device computed"),
    Metric("device/memory_used_bytes", "byte", "max", "used memory of the fullest device"),
    Metric("device/memory_used_share", "share", "share", "mean used part of a device's memory"),
    Metric("device/power_w", "W", "mean", "mean power of a device"),
    Metric("device/temperature_c", "C", "max", "temperature of the hottest device"),
    Metric("device/ecc_uncorrected", "error", "last", "ECC errors that weren't corrected"),
    Metric(
        "device/engine_turn_bytes",
        "byte",
        "max",
        "colocated: memory that this process held at the end of the engine's turn",
    ),
    Metric("device/after_engine_turn_bytes", "byte", "max", "the same, once the engine was asleep"),
    Metric("device/trainer_turn_bytes", "byte", "max", "the same, at the end of the trainer's"),
    Metric(
        "device/after_trainer_turn_bytes", "byte", "max", "the same, once the trainer had let go"
    ),
    Metric("device/throttled_share", "share", "share", "devices that run slower than they could"),
)
_OTHER = (
    Metric("publish/version", "version", "last", "weight version that the engines serve"),
    Metric("publish/bytes", "byte", "last", "bytes of the published tensors, each once"),
    Metric(
        "publish/wire_bytes", "byte", "last", "bytes that travelled (less where only changes do)"
    ),
    Metric("publish/gigabytes_per_s", "GB/s", "mean", "published bytes per second of sending"),
    Metric("publish/begin_s", "s", "sum", "seconds until the engines had taken the manifest"),
    Metric("publish/buckets_s", "s", "sum", "seconds of packing, sending and storing"),
    Metric("publish/verify_s", "s", "sum", "seconds until every engine had verified"),
    Metric("publish/commit_s", "s", "sum", "seconds until every engine served the version"),
    Metric("router/replicas_alive", "replica", "last", "engine replicas that serve requests"),
    Metric("router/departures", "replica", "last", "times that one left since the start"),
    Metric("router/joins", "replica", "last", "times that a new or recovered one joined"),
    Metric("router/retries", "request", "last", "requests begun again on another replica"),
    Metric(
        "router/in_flight_spread",
        "request",
        "max",
        "most requests that a replica had beside the least busy one since the last step",
    ),
    Metric("plugin/*", "", "mean", "whatever a third-party part records"),
)

TABLE: tuple[Metric, ...] = (*_TRAIN, *_ROLLOUT, *_TIME, *_BUFFER, *_EVAL, *_DEVICE, *_OTHER)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in TABLE}
_FAMILIES = tuple(sorted((m for m in TABLE if m.is_family), key=lambda m: -len(m.name)))


def find(name: str) -> Metric | None:
    """The declaration that covers `name` (the longest family where several do), or None."""
    exact = METRICS.get(name)
    if exact is not None and not exact.is_family:
        return exact
    return next((family for family in _FAMILIES if family.covers(name)), None)


def check(names: Iterable[str]) -> None:
    """Raise ConfigError where a name isn't declared, with the nearest known one."""
    for name in names:
        if find(name) is None:
            guess = nearest(name, METRICS)
            hint = f" Did you mean {guess!r}?" if guess else ""
            raise ConfigError(
                f"metric {name!r} isn't declared; add it to parity/observe/names.py or record it"
                f" under plugin/.{hint}"
            )


def combine(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """One row for several (micro-steps, ranks): each metric by its own reduction.

    A name that no row knows a value of stays in the result as None.
    """
    check({name for row in rows for name in row})
    gathered: dict[str, Accumulator] = {}
    for row in rows:
        for name, value in row.items():
            metric = find(name)
            assert metric is not None, name
            gathered.setdefault(name, Accumulator(metric)).add(value)
    return {name: accumulator.value for name, accumulator in gathered.items()}
