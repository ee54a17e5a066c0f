"""What a run file may say about advantages, losses, KL and correction (no torch here)."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from parity import checks

Aggregation = Literal["token_mean", "sequence_mean"]
KlEstimator = Literal["k1", "k2", "k3"]
OldLogprobs = Literal["trainer", "rollout"]
CorrectionLevel = Literal["auto", "off", "token", "sequence"]


@dataclass(frozen=True, kw_only=True)
class GrpoAdvantageConfig:
    """`advantage.name=grpo`: reward minus group mean, optionally over the group's spread."""

    name: Literal["grpo"] = "grpo"
    normalize_std: bool = True  # divide by the group's standard deviation (False: Dr. GRPO)


@dataclass(frozen=True, kw_only=True)
class PpoClipLossConfig:
    """`loss.name=ppo_clip`: clipped policy loss.

    `old_logprobs` names the denominator of the ratio: `rollout` takes the engine's own, so that
    clipping bounds how far a stale answer can move the weights; `trainer` recomputes it with the
    weights that begin the step, and `correction` weighs the gap to the engine.
    """

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = 0.2  # ratio is clipped below 1 - clip_low, in [0, 1]
    clip_high: float = 0.28  # ratio is clipped above 1 + clip_high, >= 0
    dual_clip: float | None = 3.0  # cap of the loss for negative advantages, > 1; null: off
    aggregation: Aggregation = "token_mean"  # how token losses become one number
    old_logprobs: OldLogprobs = "rollout"

    def __post_init__(self) -> None:
        checks.within("clip_low", self.clip_low, 0.0, 1.0)
        checks.at_least("clip_high", self.clip_high, 0.0)
        if self.dual_clip is not None:
            checks.above("dual_clip", self.dual_clip, 1.0)
        checks.one_of("aggregation", self.aggregation, get_args(Aggregation))
        checks.one_of("old_logprobs", self.old_logprobs, get_args(OldLogprobs))


@dataclass(frozen=True, kw_only=True)
class KlConfig:
    """KL penalty against the frozen starting weights; coefficient 0 keeps no reference."""

    coefficient: float = 0.0  # weight in the loss, >= 0
    estimator: KlEstimator = "k3"

    def __post_init__(self) -> None:
        checks.at_least("coefficient", self.coefficient, 0.0)
        checks.one_of("estimator", self.estimator, get_args(KlEstimator))


@dataclass(frozen=True, kw_only=True)
class EntropyConfig:
    """Entropy bonus; a positive coefficient rewards spread-out distributions."""

    coefficient: float = 0.0

    def __post_init__(self) -> None:
        checks.is_finite("coefficient", self.coefficient)


@dataclass(frozen=True, kw_only=True)
class CorrectionConfig:
    """Truncated importance weights pi_trainer / pi_engine on the loss of each token."""

    level: CorrectionLevel = "auto"  # auto: off with loss.old_logprobs=rollout, else token
    cap: float = 2.0  # weights above it are cut to it, >= 1

    def __post_init__(self) -> None:
        checks.one_of("level", self.level, get_args(CorrectionLevel))
        checks.at_least("cap", self.cap, 1.0)

    def beside(self, old_logprobs: OldLogprobs) -> "CorrectionConfig":
        """This section with `auto` decided; a ratio to the engine's log-probs holds the gap."""
        if self.level != "auto":
            return self
        return replace(self, level="off" if old_logprobs == "rollout" else "token")
