"""Finds out whether a decoder computes what the plain model computes.

Used once when an engine is built: three prompts, two of them padded to one length and one
taken in parts, are prefilled and then decoded side by side; the log-probs after every token
are compared with those of `model(tokens)`. So a model that ignores our masks or positions is
refused instead of sampled wrongly.
"""

import torch
from transformers import PreTrainedModel

from parity.engines.embedded.decoders.decoder import Decoder, Span
from parity.engines.embedded.prompts import prefill
from parity.errors import UnsupportedError

_LENGTHS = (3, 10, 10)  # prompt tokens
_PART = 4  # the last prompt is taken in parts of this many tokens
_NUM_TOKENS = 4  # decoded after each prompt
_LEAST_SPREAD = 1e-3
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}


def check_decoder(
    decoder: Decoder, model: PreTrainedModel, *, dtype: torch.dtype, max_length: int
) -> None:
    """Refuse (UnsupportedError) a decoder whose log-probs aren't those of `model`."""
    error = relative_error(decoder, model, max_length=max_length)
    if not error <= _TOLERANCE[dtype]:
        raise UnsupportedError(
            f"the {decoder.name} forward gives other log-probs than {type(model).__name__} "
            f"(relative error {error:.2g}, allowed {_TOLERANCE[dtype]:.2g}); it can't serve "
            f"this model."
        )


def relative_error(decoder: Decoder, model: PreTrainedModel, *, max_length: int) -> float:
    """Root mean square error of the log-probs over the standard deviation of the true ones."""
    num_tokens = min(_NUM_TOKENS, max_length - 1)
    lengths = [min(length, max_length - num_tokens) for length in _LENGTHS]
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(decoder.vocabulary_size, (length + num_tokens,), generator=generator)
        for length in lengths
    ]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            expected = [_plain_log_probs(model, row) for row in rows]
            found = _decoded_log_probs(decoder, rows, lengths)
    finally:
        model.train(was_training)
    wanted = torch.stack(
        [after[length - 1 :] for after, length in zip(expected, lengths, strict=True)], dim=1
    )
    error = (found - wanted).square().mean().sqrt()
    spread = wanted.std(dim=-1).mean().clamp_min(_LEAST_SPREAD)
    return float(error / spread)


def _plain_log_probs(model: PreTrainedModel, row: torch.Tensor) -> torch.Tensor:
    """Log-probs [L, V] after each token of one row."""
    logits = model(input_ids=row.unsqueeze(0).to(model.device), use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), dim=-1).cpu()


def _decoded_log_probs(
    decoder: Decoder, rows: list[torch.Tensor], lengths: list[int]
) -> torch.Tensor:
    """Log-probs [1 + decoded tokens, rows, V] after each prompt and each token after it."""
    cache = decoder.new_cache()
    bound = max(len(row) for row in rows)
    cache.reserve(slots=len(rows), length=bound, planned_length=bound)
    prompts = [tuple(row[:n].tolist()) for row, n in zip(rows, lengths, strict=True)]
    padded = prefill(decoder, cache, prompts[:2], (0, 1), limit=bound * len(rows))
    parts = prefill(decoder, cache, prompts[2:], (2,), limit=_PART)
    outputs = [torch.cat([padded, parts])]
    for step in range(len(rows[0]) - lengths[0]):
        before = [length + step for length in lengths]
        tokens = torch.stack([row[n] for row, n in zip(rows, before, strict=True)])
        logits = decoder.decode(
            cache,
            tokens=tokens.to(decoder.device),
            lengths=torch.tensor(before, device=decoder.device),
            spans=[Span(0, len(rows), bound)],
        )
        outputs.append(logits)
    return torch.log_softmax(torch.stack(outputs).float(), dim=-1).cpu()
