"""The weights of the lean forward: fused matrices, and how Hugging Face names map into them.

Query, key and value projections are one matrix, gate and up projections another. Within a
head of queries and keys, element i and element i + D/2 (which rotate together) are stored
side by side, so that the rotation is one complex multiplication; queries and keys are
reordered alike, so their products are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from parity.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class LeanShape:
    """The sizes of a decoder of the Llama kind."""

    num_layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    epsilon: float
    is_tied: bool

    @property
    def query_size(self) -> int:
        """Rows of the query projection."""
        return self.heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Rows of the key projection, and of the value projection."""
        return self.key_value_heads * self.head_dim


@dataclass(slots=True)
class LeanLayer:
    """One decoder layer; None where the family has no such tensor."""

    attention_norm: torch.Tensor  # [H]
    qkv: torch.Tensor  # [query_size + 2 * key_value_size, H]
    output: torch.Tensor  # [H, query_size]
    mlp_norm: torch.Tensor  # [H]
    gate_up: torch.Tensor  # [2 * intermediate, H]
    down: torch.Tensor  # [H, intermediate]
    query_norm: torch.Tensor | None = None  # [head_dim]
    key_norm: torch.Tensor | None = None  # [head_dim]
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


@dataclass(slots=True)
class LeanWeights:
    """One complete set of weights, and the destination of each Hugging Face name."""

    embedding: torch.Tensor  # [V, H]
    layers: list[LeanLayer]
    norm: torch.Tensor  # [H]
    head: torch.Tensor  # [V, H]; the embedding itself where they are tied
    destinations: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])


class _Allocator:
    """Makes tensors and notes which name fills which part."""

    def __init__(
        self, names: Mapping[str, torch.Tensor], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._names = names
        self._dtype = dtype
        self._device = device
        self.destinations: dict[str, torch.Tensor] = {}

    def tensor(self, name: str, *size: int) -> torch.Tensor:
        """A tensor that `name` fills as it is."""
        made = self._zeros(*size)
        self.destinations[name] = made
        return made

    def optional(self, name: str, *size: int) -> torch.Tensor | None:
        """Like `tensor`, or None where the model has no such name."""
        return self.tensor(name, *size) if name in self._names else None

    def interleaved_norm(self, name: str, head_dim: int) -> torch.Tensor | None:
        """The norm weight of one head, reordered like the head."""
        if name not in self._names:
            return None
        made = self._zeros(head_dim)
        self.destinations[name] = made.view(head_dim // 2, 2).t()
        return made

    def qkv(self, prefix: str, suffix: str, shape: LeanShape, *size: int) -> torch.Tensor | None:
        """The fused projection (or its bias) of queries, keys and values."""
        names = [f"{prefix}.{part}_proj.{suffix}" for part in "qkv"]
        if names[0] not in self._names:
            return None
        made = self._zeros(shape.query_size + 2 * shape.key_value_size, *size)
        sizes = [shape.query_size, shape.key_value_size, shape.key_value_size]
        query, key, value = made.split(sizes)
        for name, part in ((names[0], query), (names[1], key)):
            pairs = part.view(-1, shape.head_dim // 2, 2, *size)
            self.destinations[name] = pairs.transpose(1, 2)
        self.destinations[names[2]] = value
        return made

    def gate_up(self, prefix: str, suffix: str, rows: int, *size: int) -> torch.Tensor | None:
        """The fused gate and up projections (or their bias)."""
        names = [f"{prefix}.{part}_proj.{suffix}" for part in ("gate", "up")]
        if names[0] not in self._names:
            return None
        made = self._zeros(2 * rows, *size)
        self.destinations.update(zip(names, made.split(rows), strict=True))
        return made

    def _zeros(self, *size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=self._dtype, device=self._device)


def allocate(
    names: Mapping[str, torch.Tensor],
    shape: LeanShape,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> LeanWeights:
    """Weights of zeros with a destination for each name of the model.

    Raises UnsupportedError where the model has a tensor that this forward doesn't know, or
    lacks one that it needs, or has one of another size.
    """
    make = _Allocator(names, dtype=dtype, device=device)
    embedding = make.tensor("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
    layers = [_layer(make, f"model.layers.{i}", shape) for i in range(shape.num_layers)]
    norm = make.tensor("model.norm.weight", shape.hidden)
    if shape.is_tied:
        head = make.destinations["lm_head.weight"] = embedding
    else:
        head = make.tensor("lm_head.weight", shape.vocabulary, shape.hidden)
    wrong = sorted(names.keys() ^ make.destinations.keys()) or sorted(
        name for name, made in make.destinations.items() if made.numel() != names[name].numel()
    )
    if wrong:
        raise UnsupportedError(
            f"the lean forward doesn't fit these tensors of the model: {wrong[:5]}; "
            f"set engine.forward=generic."
        )
    return LeanWeights(embedding, layers, norm, head, make.destinations)


def _layer(make: _Allocator, prefix: str, shape: LeanShape) -> LeanLayer:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    qkv = make.qkv(attention, "weight", shape, shape.hidden)
    gate_up = make.gate_up(mlp, "weight", shape.intermediate, shape.hidden)
    if qkv is None or gate_up is None:
        raise UnsupportedError(
            f"the lean forward needs {attention}.q_proj.weight and {mlp}.gate_proj.weight, which "
            f"the model doesn't have; set engine.forward=generic."
        )
    return LeanLayer(
        attention_norm=make.tensor(f"{prefix}.input_layernorm.weight", shape.hidden),
        qkv=qkv,
        output=make.tensor(f"{attention}.o_proj.weight", shape.hidden, shape.query_size),
        mlp_norm=make.tensor(f"{prefix}.post_attention_layernorm.weight", shape.hidden),
        gate_up=gate_up,
        down=make.tensor(f"{mlp}.down_proj.weight", shape.hidden, shape.intermediate),
        query_norm=make.interleaved_norm(f"{attention}.q_norm.weight", shape.head_dim),
        key_norm=make.interleaved_norm(f"{attention}.k_norm.weight", shape.head_dim),
        qkv_bias=make.qkv(attention, "bias", shape),
        output_bias=make.optional(f"{attention}.o_proj.bias", shape.hidden),
        gate_up_bias=make.gate_up(mlp, "bias", shape.intermediate),
        down_bias=make.optional(f"{mlp}.down_proj.bias", shape.hidden),
    )


def fill(weights: LeanWeights, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a model's tensors into their destinations."""
    with torch.no_grad():
        for name, destination in weights.destinations.items():
            destination.copy_(tensors[name].reshape(destination.shape))
