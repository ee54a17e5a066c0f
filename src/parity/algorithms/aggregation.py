"""How the losses of many tokens become one number: a weight per token, summing to 1.

The packing computes these weights once over the full batch, before it is cut into
micro-batches and ranks, and the loss of any part is `sum(weight * token_loss)`. So losses
and gradients add up to the same total for every split, order, padding and number of
ranks, by construction: no denominator is ever local. Ranks must therefore add gradients,
not average them.

    token_mean      1 / T                                DAPO (Yu et al. 2025), section 3.3
    sequence_mean   1 / (S * tokens of the sample)       GRPO (Shao et al. 2024), eq. 3

T is the number of trained tokens of the batch; S is the number of samples with at least
one of them.
"""

import torch
from torch import Tensor

from parity.algorithms.config import Aggregation


def token_weights(sample_index: Tensor, mode: Aggregation) -> Tensor:
    """Weights [T] float32 of all trained tokens of a batch; empty for an empty batch.

    Args:
        sample_index: [T] int64, which sample a token belongs to; any numbers, any order.
        mode: `token_mean` gives every token the same say, `sequence_mean` every sample.
    """
    if mode == "token_mean":
        num_tokens = torch.full_like(sample_index, len(sample_index))
        return num_tokens.to(torch.float32).reciprocal()
    samples, position, num_tokens = sample_index.unique(return_inverse=True, return_counts=True)
    return (num_tokens * len(samples)).to(torch.float32).reciprocal()[position]
