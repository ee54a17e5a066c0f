"""What an engine may offer beside its contract, so that digests reach into its own memory."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class StagedWeights(Protocol):
    """An engine that shows what the next `commit_load` would serve."""

    def staged_weights(self) -> Mapping[str, torch.Tensor]:
        """By name, between `begin_load` and `commit_load`.

        A tensor may have another shape and dtype than the trainer's, but the same elements in
        the same row-major order.
        """
        ...
