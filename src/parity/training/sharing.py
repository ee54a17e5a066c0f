"""Whether a model computes the branches of a tree as it computes samples alone.

Used once per run by `trainer.py`, before the first shared row. A model whose attention
ignores or refuses an explicit mask, or that carries state along the row (recurrent layers),
must not be given shared rows; nothing is taken on trust: both layouts are run and compared.
"""

import torch

from parity.models.loading import vocab_size
from parity.training.forward import MASKED_ATTENTION, Scorer, attention_name, probe_tokens
from parity.training.layout import ModelCost
from parity.training.micro_batch import Batch
from parity.training.packing import pack
from parity.types import NO_VERSION, Sample

FLOAT32_TOLERANCE = 1e-3  # of log-probs in nats, and of outputs relative to the largest
LOW_PRECISION_TOLERANCE = 5e-2
RESPONSES = (5, 1, 7)  # tokens of the probe's siblings
IN_COMMON = 3  # of these, where they have as many
PROMPT_TOKENS = 6


def sharing_fault(scorer: Scorer, *, is_low_precision: bool, device: torch.device) -> str | None:
    """Why shared rows can't be used with this model; None where they agree with plain rows."""
    attention = attention_name(scorer.model)
    if attention not in MASKED_ATTENTION:
        return f"model.attention={attention} takes no mask of any shape"
    samples = _probe(scorer)
    tolerance = LOW_PRECISION_TOLERANCE if is_low_precision else FLOAT32_TOLERANCE
    plain = _scores(scorer, _packed(samples, prefix_sharing=False), device)
    try:
        shared = _scores(scorer, _packed(samples, prefix_sharing=True), device)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        return f"the model refuses the mask ({type(error).__name__}: {error})"
    gaps = [
        (plain[0] - shared[0]).abs().max(),
        (plain[1] - shared[1]).abs().max() / plain[1].abs().max(),
    ]
    worst = float(torch.stack(gaps).max())
    if worst <= tolerance:
        return None
    return f"shared and plain rows differ by {worst:.2g}, more than {tolerance:g}"


def _probe(scorer: Scorer) -> list[Sample]:
    """Siblings whose answers to one prompt begin alike and then part."""
    vocabulary = vocab_size(scorer.model.config)
    ids = probe_tokens(PROMPT_TOKENS + sum(RESPONSES), vocabulary=vocabulary).tolist()
    prompt, rest = ids[:PROMPT_TOKENS], ids[PROMPT_TOKENS:]
    samples: list[Sample] = []
    common = rest[:IN_COMMON]
    for count in RESPONSES:
        tokens = (*prompt, *common[:count], *rest[IN_COMMON:count])
        rest = rest[count:]
        samples.append(
            Sample(
                group=0,
                tokens=tokens,
                loss_mask=(False,) * PROMPT_TOKENS + (True,) * count,
                logprobs=(0.0,) * len(tokens),
                versions=(NO_VERSION,) * len(tokens),
                advantages=(1.0,) * len(tokens),
            )
        )
    return samples


def _packed(samples: list[Sample], *, prefix_sharing: bool) -> Batch:
    free_attention = ModelCost(token_flops=1.0, pair_flops=0.0)  # so that all siblings share
    return pack(
        samples,
        aggregation="token_mean",
        max_tokens=PROMPT_TOKENS + sum(RESPONSES),
        prefix_sharing=prefix_sharing,
        cost=free_attention,
    )


def _scores(
    scorer: Scorer, batch: Batch, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs [T] and outputs [T, ...] of all micro-batches, in sample order."""
    with torch.no_grad():
        parts = [part.to(device) for part in batch.micro_batches]
        logprobs = torch.cat([scorer.scores(part).logprobs for part in parts])
        outputs = torch.cat([part.per_token(scorer.outputs(part)) for part in parts]).float()
    order = torch.cat([part.sample_index for part in parts]).argsort(stable=True)
    return logprobs[order], outputs[order]
