"""The contract of a policy loss: one number per trained token, to be minimised.

A policy loss is a pure function of flat tensors [T] in float32 or wider; it neither
averages nor weighs (`aggregation.py` does), so each entry depends on its own token only.
`objective.py` calls it once per micro-batch. What must stay true: a token with advantage
0 has loss and gradient 0, extreme log-ratios stay finite in value and gradient, and a NaN
input comes out as NaN instead of disappearing.
"""

from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

from parity.algorithms.config import PpoClipLossConfig
from parity.algorithms.losses import LOSSES


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """What a policy loss says about T tokens."""

    loss: Tensor  # [T], differentiable with respect to the current log-probs
    is_clipped: Tensor  # [T] bool: clipping took the token's gradient away
    ratio: Tensor  # [T] detached: current over old probability, as the loss used it


class PolicyLoss(Protocol):
    """Scores tokens by how likely they are now, how likely they were, and their advantage."""

    def __call__(
        self,
        logprobs: Tensor,
        *,
        old_logprobs: Tensor,
        advantages: Tensor,
        config: PpoClipLossConfig,
    ) -> PolicyTerms:
        """Loss of each token.

        Args:
            logprobs: [T] of the weights being trained, with gradient.
            old_logprobs: [T] of the weights the ratio is taken against, without gradient.
            advantages: [T], without gradient.
            config: the loss's own section of the run file.
        """
        ...


def load_loss(name: str) -> PolicyLoss:
    """The policy loss that a run file calls `name`, third-party ones included."""
    return cast(PolicyLoss, LOSSES.load(name))
