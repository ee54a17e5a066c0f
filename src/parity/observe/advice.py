"""Hints about a run that can't learn, each with the numbers that give it away.

`advise` is a pure function of the metrics of the steps so far; `Advisor` remembers what was
said. Few and right: a hint needs evidence over several steps (the first alone where nothing can
change it), and says nothing about a run whose reward is already high.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from parity.observe.statistics import expected_informative_share

Row = Mapping[str, float | None]
WINDOW = 5  # steps
SOLVED = 0.9  # success rate above which equal rewards are good news
LEAST_LENGTH_BIAS, LENGTH_BIAS_P = 0.05, 0.001  # the rule of the warning
_LENGTH_P = "rollout/length_bias_p"
_REPEAT_STEPS = 100


@dataclass(frozen=True, slots=True)
class Hint:
    """One piece of advice; `key` names its kind."""

    key: str
    text: str


class Advisor:
    """Gives each kind of hint once, and again only if it still holds 100 steps later."""

    def __init__(self, *, group_size: int) -> None:
        self._group_size = group_size
        self._early: list[Row] = []
        self._recent: list[Row] = []
        self._num_steps = 0
        self._said_at: dict[str, int] = {}

    def __call__(self, metrics: Row) -> list[str]:
        """Take the metrics of a step; the new sentences, mostly none."""
        self._num_steps += 1
        if len(self._early) < WINDOW:
            self._early.append(dict(metrics))
        else:
            self._recent = [*self._recent[1 - 4 * WINDOW :], dict(metrics)]
        said: list[str] = []
        for hint in advise([*self._early, *self._recent], group_size=self._group_size):
            before = self._said_at.get(hint.key)
            if before is None or self._num_steps - before >= _REPEAT_STEPS:
                self._said_at[hint.key] = self._num_steps
                said.append(hint.text)
        return said


def advise(rows: Sequence[Row], *, group_size: int) -> list[Hint]:
    """The hints that hold now.

    Args:
        rows: metrics of the steps, oldest first: at least the first and the last 20 or so.
        group_size: episodes per group.
    """
    rules: tuple[Callable[[Sequence[Row], int], Hint | None], ...] = (
        all_truncated,
        few_informative_groups,
        entropy_collapse,
        growing_mismatch,
        length_bias,
    )
    hints: list[Hint] = []
    for rule in rules:
        hint = rule(rows, group_size)
        # Cut answers explain equal rewards; the second hint would send the reader elsewhere.
        if hint is not None and not (hint.key == "few_informative_groups" and hints):
            hints.append(hint)
    return hints


def all_truncated(rows: Sequence[Row], group_size: int) -> Hint | None:
    """Every answer hits the token limit and no group has a spread: nothing can be learned."""
    del group_size
    truncated = _known(rows[-1:], "rollout/truncated_share")
    equal = _known(rows[-1:], "rollout/zero_spread_share")
    if not truncated or not equal or truncated[0] < 0.98 or equal[0] < 0.98:
        return None
    longest = _known(rows[-1:], "rollout/response_tokens_max")
    limit = f" ({longest[0]:.0f} tokens)" if longest else ""
    return Hint(
        "all_truncated",
        f"{truncated[0]:.0%} of the answers were cut at the token limit{limit} and "
        f"{equal[0]:.0%} of the groups have no difference in reward, so there is nothing to learn"
        " from; raise sampling.max_new_tokens until answers end by themselves.",
    )


def few_informative_groups(rows: Sequence[Row], group_size: int) -> Hint | None:
    """Most groups have equal rewards; with the share that the success rate would give."""
    recent = rows[-WINDOW:]
    equal = _known(recent, "rollout/zero_spread_share")
    rewards = _known(recent, "rollout/raw_reward")
    if len(equal) < WINDOW or len(rewards) < WINDOW or fmean(equal) <= 0.7 or group_size < 2:
        return None
    early = _known(rows[:WINDOW], "rollout/raw_reward")
    reward, is_binary = fmean(rewards), _is_binary(recent)
    # Equal rewards are good news at the end. Without a known maximum, "it learned" must do.
    if reward >= SOLVED if is_binary else reward > fmean(early or rewards):
        return None
    if is_binary and reward == 0:
        text = f"no answer of the last {WINDOW} steps earned a reward; {_REMEDY}"
    else:
        informative = 1 - fmean(equal)
        text = (
            f"only {informative:.0%} of the groups of the last {WINDOW} steps have answers of"
            " different reward, and only those teach anything; "
        )
        text += _compared(reward, group_size, informative) if is_binary else _REMEDY
    return Hint("few_informative_groups", text)


def _compared(success_rate: float, group_size: int, informative: float) -> str:
    """What the success rate lets expect, and what follows from the difference."""
    expected = expected_informative_share(success_rate, group_size)
    text = f"a success rate of {success_rate:.2f} with groups of {group_size} gives up to"
    if informative < expected / 2:
        return (
            f"{text} {expected:.0%}, so most tasks are either always or never solved; choose tasks"
            " of medium difficulty, or set rollouts.drop_zero_spread=true."
        )
    larger, wish = 4 * group_size, "easier" if success_rate < 0.5 else "harder"
    better = expected_informative_share(success_rate, larger)
    return (
        f"{text} {expected:.0%}, and groups of {larger} up to {better:.0%}; raise"
        f" rollouts.group_size, or choose {wish} tasks."
    )


def entropy_collapse(rows: Sequence[Row], group_size: int) -> Hint | None:
    """Entropy fell to a tenth while the reward stands still below the goal."""
    del group_size
    early = _known(rows[:WINDOW], "train/entropy")
    recent = _known(rows[-WINDOW:], "train/entropy")
    before = _known(rows[-3 * WINDOW : -WINDOW], "rollout/raw_reward")
    rewards = _known(rows[-WINDOW:], "rollout/raw_reward")
    if len(rows) < 4 * WINDOW or not all(len(v) >= WINDOW for v in (early, recent, before)):
        return None
    start, now = fmean(early), fmean(recent)
    if start <= 0 or now >= 0.1 * start or len(rewards) < WINDOW:
        return None
    is_rising = fmean(rewards) > fmean(before) + 0.02
    if is_rising or fmean(rewards) >= SOLVED:
        return None
    return Hint(
        "entropy_collapse",
        f"entropy fell from {start:.3g} to {now:.3g} nats while the reward stands at "
        f"{fmean(rewards):.2f}, so the model hardly tries anything new; lower optimizer.lr, or set"
        " entropy.coefficient or kl.coefficient above 0.",
    )


def growing_mismatch(rows: Sequence[Row], group_size: int) -> Hint | None:
    """Trainer and engine drift apart although both hold the same weights (lag 0)."""
    del group_size
    name = "train/train_rollout_logprob_abs_diff"
    early, recent = _known(rows[:WINDOW], name), _known(rows[-WINDOW:], name)
    lags = _known(rows[-WINDOW:], "rollout/lag_max")
    is_on_policy = len(lags) == WINDOW and max(lags) == 0
    if len(rows) < 2 * WINDOW or not is_on_policy or min(len(early), len(recent)) < WINDOW:
        return None
    start, now = fmean(early), fmean(recent)
    if now < 1e-3 or now < 5 * start:
        return None
    return Hint(
        "growing_mismatch",
        f"the log-probs of trainer and engine differ by {now:.2g} nats per token, {start:.2g} at"
        " the start, although every token is of the current weights (lag 0); the engine's weights"
        " or numerics are off, so check the publication with `parity doctor` before going on.",
    )


def length_bias(rows: Sequence[Row], group_size: int) -> Hint | None:
    """Trained answers are longer or shorter than issued ones: |bias| > 0.05 and p < 0.001."""
    del group_size
    bias, p_value = _known(rows[-1:], "rollout/length_bias"), _known(rows[-1:], _LENGTH_P)
    if not bias or not p_value or abs(bias[0]) <= LEAST_LENGTH_BIAS or p_value[0] >= LENGTH_BIAS_P:
        return None
    favoured, how = ("short", "less") if bias[0] < 0 else ("long", "more")
    return Hint(
        "length_bias",
        f"{favoured} answers are favoured: a trained answer is longer than an issued one"
        f" {abs(bias[0]):.0%} {how} often than shorter (Mann-Whitney p = {p_value[0]:.1g}; said"
        f" above {LEAST_LENGTH_BIAS:.0%} with p below {LENGTH_BIAS_P:g}); look at"
        " rollouts.episode_timeout_s and rollouts.drop_zero_spread, which leave answers out.",
    )


_REMEDY = (
    "choose easier tasks or a reward with partial credit, or start from a model that already"
    " succeeds sometimes (parity sft)."
)


def _known(rows: Sequence[Row], name: str) -> list[float]:
    values = (row.get(name) for row in rows)
    return [value for value in values if value is not None and not math.isnan(value)]


def _is_binary(rows: Sequence[Row]) -> bool:
    """True if rewards are all 0 or 1: of values in [0, 1] only those have a variance p(1 - p)."""
    pairs = [(row.get("rollout/raw_reward"), row.get("rollout/reward_std")) for row in rows]
    return all(
        mean is not None
        and std is not None
        and 0 <= mean <= 1
        and abs(std * std - mean * (1 - mean)) < 1e-6
        for mean, std in pairs
    )
