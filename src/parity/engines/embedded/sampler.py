"""Draws the next token of every row of a batch in one pass.

The noise of a token is a pure function of (request seed, index of the token in its answer),
so a request's noise doesn't depend on what is decoded beside it. A token is drawn by
inverting the cumulative distribution at that one uniform number, in double precision.
Log-probs are those of softmax(logits / temperature) before top-k and top-p
(temperature 0: of the untempered logits).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_WORD = 2**64 - 1
_BELOW_ONE = 1.0 - 2.0**-53
_BLOCK = 256  # entries summed at once where the vocabulary is large
_SINGLE_LEVEL_SIZE = 1024  # up to here one cumulative sum over the vocabulary is cheapest
_CANDIDATES = 1024  # first guess of how many tokens a top-p filter keeps at most


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of splitmix64 (Steele, Lea, Flood 2014)."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def uniforms(
    seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (seed, index), the same for the same pair for ever."""
    state = _mix(seeds + _GOLDEN) + (indices.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derive_seed(seed: int, number: int) -> int:
    """A seed for the request with this number, from the engine's seed."""
    state = np.array([seed & _WORD, number & _WORD], np.uint64)
    mixed = _mix(_mix(state[:1] + _GOLDEN) + (state[1:] + np.uint64(1)) * _GOLDEN)
    return int(mixed[0])


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How the rows of a batch are sampled, as tensors; None where nobody needs the part."""

    temperature: torch.Tensor | None  # [rows, 1]; None: 1 everywhere
    greedy: torch.Tensor | None  # bool [rows]; None: nobody is greedy
    is_all_greedy: bool
    filtered: torch.Tensor | None  # int64 [F]: rows that use top-k or top-p
    top_k: torch.Tensor | None  # int64 [F, 1], the vocabulary size where off
    top_p: torch.Tensor | None  # float64 [F, 1]

    @classmethod
    def of(
        cls,
        *,
        temperature: npt.NDArray[np.float32],
        top_p: npt.NDArray[np.float64],
        top_k: npt.NDArray[np.int64],
        device: torch.device,
    ) -> "SamplingPlan":
        """The plan of rows with these settings (temperature 0: greedy; top_k 0: off)."""
        is_greedy = temperature == 0.0
        is_filtered = ((top_k > 0) | (top_p < 1.0)) & ~is_greedy
        divisor = np.where(is_greedy, np.float32(1.0), temperature)
        filtered = np.flatnonzero(is_filtered)
        no_limit = np.iinfo(np.int64).max
        limit = np.where(top_k > 0, top_k, no_limit)[filtered]
        has_filter = filtered.size > 0
        return cls(
            temperature=_column(divisor, device) if (divisor != 1.0).any() else None,
            greedy=torch.from_numpy(is_greedy).to(device) if is_greedy.any() else None,
            is_all_greedy=bool(is_greedy.all()),
            filtered=torch.from_numpy(filtered).to(device) if has_filter else None,
            top_k=_column(limit, device) if has_filter else None,
            top_p=_column(top_p[filtered], device) if has_filter else None,
        )


def _column(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device).unsqueeze(-1)


def sample(
    logits: torch.Tensor, plan: SamplingPlan, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The next token of each row and its log-prob.

    Args:
        logits: [rows, V].
        plan: settings of the same rows.
        uniform: float64 [rows] in [0, 1).

    Returns:
        int64 ids [rows] and float32 log-probs [rows]; a log-prob is NaN where the logits of
        the row aren't finite.
    """
    logits = logits.float()
    if plan.temperature is not None:
        logits = logits / plan.temperature
    probabilities = torch.softmax(logits, dim=-1)
    if plan.is_all_greedy:
        ids = logits.argmax(dim=-1)
    else:
        ids = draw(probabilities, uniform)
        if plan.filtered is not None and plan.top_k is not None and plan.top_p is not None:
            rows = plan.filtered
            ids[rows] = draw_filtered(
                probabilities[rows], uniform[rows], top_k=plan.top_k, top_p=plan.top_p
            )
        if plan.greedy is not None:
            ids = torch.where(plan.greedy, logits.argmax(dim=-1), ids)
    chosen = probabilities.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return ids, chosen.log()


def draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Per row an index drawn in proportion to `weights` [rows, V] by inverting at `uniform`."""
    if weights.shape[-1] <= _SINGLE_LEVEL_SIZE:
        return _invert(weights.cumsum(-1, dtype=torch.float64), uniform)
    padding = -weights.shape[-1] % _BLOCK
    blocks = torch.nn.functional.pad(weights, (0, padding)).unflatten(-1, (-1, _BLOCK))
    edges = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    block = _invert(edges, uniform).unsqueeze(-1)
    below = torch.where(block > 0, edges.gather(-1, (block - 1).clamp_min(0)), 0.0)
    inner = blocks[torch.arange(len(blocks), device=blocks.device), block.squeeze(-1)]
    inner = inner.cumsum(-1, dtype=torch.float64)
    target = uniform.unsqueeze(-1) * edges[:, -1:] - below
    target = torch.minimum(target.clamp_min(0.0), inner[:, -1:] * _BELOW_ONE)
    inside = torch.searchsorted(inner, target, right=True)
    return (block * _BLOCK + inside).squeeze(-1).clamp_max(weights.shape[-1] - 1)


def _invert(cumulative: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first index whose cumulative weight is above uniform * total: never one of weight 0."""
    target = uniform.unsqueeze(-1) * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    return found.clamp_max(cumulative.shape[-1] - 1)  # only NaN goes past the end


def draw_filtered(
    probabilities: torch.Tensor, uniform: torch.Tensor, *, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Like `draw`, from the top_k most likely tokens, then from the fewest with mass top_p.

    Args:
        probabilities: [F, V].
        uniform: float64 [F].
        top_k: int64 [F, 1].
        top_p: float64 [F, 1], of the mass that top-k left.
    """
    weights, ids = _candidates(probabilities, top_k=top_k, top_p=top_p)
    rank = torch.arange(weights.shape[-1], device=weights.device)
    weights = torch.where(rank < top_k, weights, 0.0)
    total = torch.where(
        top_k > weights.shape[-1],
        probabilities.sum(-1, keepdim=True, dtype=torch.float64),
        weights.sum(-1, keepdim=True, dtype=torch.float64),
    )
    before = weights.cumsum(-1, dtype=torch.float64) - weights
    weights = torch.where(before < top_p * total, weights, 0.0)
    chosen = draw(weights, uniform)
    return ids.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def _candidates(
    probabilities: torch.Tensor, *, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Enough of each row's largest probabilities, descending, without sorting a vocabulary."""
    size = probabilities.shape[-1]
    width = min(size, _CANDIDATES)
    while True:
        weights, ids = probabilities.topk(width, dim=-1)
        covered = (top_k <= width) | (weights.sum(-1, keepdim=True, dtype=torch.float64) >= top_p)
        if width == size or bool(covered.all()):
            return weights, ids
        width = min(size, width * 8)
