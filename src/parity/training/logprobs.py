"""Log-probability and entropy of given tokens, exactly, without holding all logits.

    z = logits / temperature,  logprob = z[target] - logsumexp(z),  entropy = -sum p log p
    d logprob / dz = onehot(target) - p
    d entropy / dz = -p (log p + entropy)

`token_logprobs` works from hidden states and the head's weight in blocks of tokens and chunks
of the vocabulary (running log-sum-exp, recomputed in the backward pass); where all logits
fit one block, they are kept instead. `logits_logprobs` is the same for logits that a model computed
itself. Temperature is the one the engine sampled with: both sides mean the same softmax.
Used by `forward.py`.
"""

from typing import cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

HELD_LOGITS = 2**26  # entries of one block of logits (256 MiB in float32)


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    chunk: int,
    needs_entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [T], in float32 or wider, under logits `hidden @ weight.T`.

    Args:
        hidden: [T, H]; its dtype is the one of the matrix products.
        weight: [V, H] of a head without bias or scaling.
        targets: [T] int64, the tokens that are scored.
        temperature: > 0.
        chunk: vocabulary entries of one block of logits, >= 1.
        needs_entropy_gradient: False: entropy is a number only.
    """
    logprobs, entropy = cast(
        tuple[Tensor, Tensor],
        _TokenLogprobs.apply(hidden, weight, targets, temperature, chunk, needs_entropy_gradient),
    )
    return logprobs, entropy


def logits_logprobs(
    logits: Tensor, targets: Tensor, *, temperature: float, needs_entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [T], in float32 or wider, from logits [T, V]."""
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    everything = scaled.log_softmax(dim=-1)
    logprobs = everything.gather(1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(needs_entropy_gradient and torch.is_grad_enabled()):
        entropy = -(everything.exp() * everything).sum(dim=-1)
    return logprobs, entropy


class _TokenLogprobs(Function):
    """The blocked computation; gradients for hidden states and weight."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk: int,
        needs_entropy_gradient: bool,  # noqa: FBT001 (autograd passes by position)
    ) -> tuple[Tensor, Tensor]:
        blocks = [
            _statistics(hidden[block], weight, targets[block], temperature, chunk)
            for block in _blocks(len(targets), min(chunk, len(weight)))
        ]
        target, log_total, entropy = (torch.cat([b[i] for b in blocks]) for i in range(3))
        is_kept = len(blocks) == 1 and len(weight) <= chunk
        kept = blocks[0][3] if is_kept else None
        ctx.save_for_backward(hidden, weight, targets, log_total, entropy, kept)  # pyright: ignore[reportArgumentType]
        ctx.constants = (temperature, chunk, needs_entropy_gradient)  # pyright: ignore[reportAttributeAccessIssue]
        if not needs_entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return target - log_total, entropy

    @staticmethod
    def backward(
        ctx: FunctionCtx, *gradients: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, targets, log_total, entropy, kept = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
        temperature, chunk, needs_entropy_gradient = ctx.constants  # pyright: ignore[reportAttributeAccessIssue]
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]  # pyright: ignore[reportAttributeAccessIssue]
        of_logprob, of_entropy = (gradient / temperature for gradient in gradients)
        hidden_gradient = torch.zeros_like(hidden, dtype=log_total.dtype) if needs_hidden else None
        weight_gradient = torch.zeros_like(weight) if needs_weight else None
        for block in _blocks(len(targets), min(chunk, len(weight))):
            for start in range(0, len(weight), chunk):
                rows, part = hidden[block], weight[start : start + chunk]
                scaled = _scaled_logits(rows, part, temperature) if kept is None else kept
                log_share = scaled - log_total[block, None]
                share = log_share.exp()
                slope = share * -of_logprob[block, None]
                if needs_entropy_gradient:
                    surprise = log_share.add_(entropy[block, None])
                    slope -= share.mul_(surprise).mul_(of_entropy[block, None])
                inside, place = _places(targets[block], start, scaled.shape[1])
                slope.scatter_add_(1, place[:, None], (of_logprob[block] * inside)[:, None])
                slope = slope.to(hidden.dtype)
                if hidden_gradient is not None:
                    hidden_gradient[block] += slope @ part.to(hidden.dtype)
                if weight_gradient is not None:
                    weight_gradient[start : start + chunk] += slope.T @ rows
        if hidden_gradient is not None:
            hidden_gradient = hidden_gradient.to(hidden.dtype)
        return hidden_gradient, weight_gradient, None, None, None, None


def _statistics(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of one block: z[target], logsumexp(z) and entropy [T], and z of the last chunk."""
    scaled = _scaled_logits(hidden, weight[:chunk], temperature)
    top = scaled.amax(dim=1)
    shifted = scaled - top[:, None]
    terms = shifted.exp()
    mass = terms.sum(dim=1)  # sum of exp(z - top)
    moment = (terms * shifted).sum(dim=1)  # sum of exp(z - top) (z - top)
    inside, place = _places(targets, 0, scaled.shape[1])
    target = scaled.gather(1, place[:, None])[:, 0] * inside
    for start in range(chunk, len(weight), chunk):
        scaled = _scaled_logits(hidden, weight[start : start + chunk], temperature)
        raised = torch.maximum(top, scaled.amax(dim=1))
        fall = top - raised
        shifted = scaled - raised[:, None]
        terms = shifted.exp()
        moment = (moment + mass * fall) * fall.exp() + (terms * shifted).sum(dim=1)
        mass = mass * fall.exp() + terms.sum(dim=1)
        top = raised
        inside, place = _places(targets, start, scaled.shape[1])
        target = torch.where(inside, scaled.gather(1, place[:, None])[:, 0], target)
    return target, top + mass.log(), mass.log() - moment / mass, scaled


def _blocks(num_tokens: int, width: int) -> list[slice]:
    """Runs of tokens whose logits over `width` vocabulary entries may be held at once."""
    size = max(1, HELD_LOGITS // width)
    return [slice(begin, begin + size) for begin in range(0, max(1, num_tokens), size)]


def _places(targets: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Whether a target lies in the chunk that begins at `start`, and its column there."""
    place = targets - start
    return (place >= 0) & (place < width), place.clamp(0, width - 1)


def _scaled_logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """Logits [T, chunk] over temperature, in float32 or wider."""
    logits = hidden @ weight.to(hidden.dtype).T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if temperature == 1.0 else logits.div_(temperature)
