"""The lean forward: decoders of the Llama kind written by hand, few operations per token.

Serves the families llama, mistral, qwen2 and qwen3 as long as every layer attends to
everything before it. Attention multiplies the grouped query heads of a key-value head with
its cached keys as batched matrices; keys are cached transposed, because that is the fastest
layout for it. Sizes: n rows, H hidden, D head_dim, L cached tokens.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from parity.engines.embedded.cache import LayerShape, SlotCache
from parity.engines.embedded.decoders.decoder import Decoder, Span, named_tensors
from parity.engines.embedded.decoders.lean_weights import (
    LeanLayer,
    LeanShape,
    LeanWeights,
    allocate,
    fill,
)
from parity.errors import UnsupportedError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_CHANGING_ROPE = ("dynamic", "longrope")  # depends on the longest sequence of a batch


class LeanDecoder(Decoder):
    """The hand-written forward of one model."""

    name = "lean"
    uses_spans = True

    def __init__(
        self, model: PreTrainedModel, *, dtype: torch.dtype, device: torch.device, max_length: int
    ) -> None:
        """Copy the weights of `model`.

        Raises UnsupportedError where the model isn't exactly of a known family.
        """
        names = named_tensors(model)
        check_family(model.config, max_length=max_length)
        self.shape = _shape(model.config, names)
        self.vocabulary_size = self.shape.vocabulary
        self.dtype = dtype
        self.device = device
        self._epsilon = torch.tensor(self.shape.epsilon, dtype=torch.float32, device=device)
        self._expected = {name: tuple(tensor.shape) for name, tensor in names.items()}
        self._rotations = _rotations(model, self.shape.head_dim, max_length).to(device)
        self._weights = allocate(names, self.shape, dtype=dtype, device=device)
        self._staged: LeanWeights | None = None
        fill(self._weights, names)

    @property
    def expected(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by Hugging Face name."""
        return self._expected

    def new_cache(self) -> SlotCache:
        """An empty cache with transposed keys."""
        shape = LayerShape(self.shape.key_value_heads, self.shape.head_dim, self.shape.head_dim)
        return SlotCache(
            [shape] * self.shape.num_layers,
            keys_transposed=True,
            dtype=self.dtype,
            device=self.device,
        )

    def served(self) -> Mapping[str, torch.Tensor]:
        """The parts of the fused tensors that are decoded with."""
        return self._weights.destinations

    def staged(self) -> Mapping[str, torch.Tensor]:
        """Destinations in the set of weights that isn't decoded with."""
        if self._staged is None:
            names = self._weights.destinations
            self._staged = allocate(names, self.shape, dtype=self.dtype, device=self.device)
        return self._staged.destinations

    def swap(self) -> None:
        """Exchange the two sets of weights."""
        if self._staged is None:
            raise AssertionError("swap without staged weights")
        self._weights, self._staged = self._staged, self._weights

    def drop_staged(self) -> None:
        """Forget the set of weights that isn't decoded with."""
        self._staged = None

    def free(self) -> None:
        """Drop both sets of weights."""
        self._staged = None
        none = torch.zeros(0, dtype=self.dtype, device=self.device)
        self._weights = LeanWeights(none, [], none, none)

    def prefill(
        self,
        cache: SlotCache,
        *,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        start: int,
        last: torch.Tensor,
    ) -> torch.Tensor:
        """Write prompt tokens; see the contract."""
        rows, columns = tokens.shape
        stop = start + columns
        rotation = self._rotations[start:stop].repeat(rows, 1).unsqueeze(1)
        mask = None
        if start > 0:
            before = torch.ones(columns, stop, dtype=torch.bool, device=self.device)
            mask = before.tril_(start)
        hidden = functional.embedding(tokens.reshape(-1), self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            query, key, value = self._project(layer, hidden, rotation)
            key = key.unflatten(0, (rows, columns)).permute(0, 2, 3, 1)
            value = value.unflatten(0, (rows, columns)).transpose(1, 2)
            cache.keys[index][slots, :, :, start:stop] = key
            cache.values[index][slots, :, start:stop] = value
            if start > 0:
                key = cache.keys[index][slots, :, :, :stop]
                value = cache.values[index][slots, :, :stop]
            attended = self._attend_prompt(query, key, value, mask)
            hidden = self._finish_layer(layer, hidden, attended)
        picked = hidden.unflatten(0, (rows, columns))[torch.arange(rows, device=last.device), last]
        return self._logits(picked)

    def decode(
        self,
        cache: SlotCache,
        *,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        spans: Sequence[Span],
    ) -> torch.Tensor:
        """Take one token per slot; see the contract."""
        rows = torch.arange(len(tokens), device=self.device)
        rotation = self._rotations[lengths].unsqueeze(1)
        biases = [self._bias(lengths, span) for span in spans]
        hidden = functional.embedding(tokens, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            query, key, value = self._project(layer, hidden, rotation)
            cache.keys[index][rows, :, :, lengths] = key
            cache.values[index][rows, :, lengths] = value
            attended = self._attend_cache(
                query, cache.keys[index], cache.values[index], spans, biases
            )
            hidden = self._finish_layer(layer, hidden, attended)
        return self._logits(hidden)

    def _project(
        self, layer: LeanLayer, hidden: torch.Tensor, rotation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated queries [n, heads, D] and keys [n, key_value_heads, D], and values."""
        shape = self.shape
        normed = self._scaled(hidden) * layer.attention_norm
        projected = functional.linear(normed, layer.qkv, layer.qkv_bias)
        projected = projected.view(len(hidden), -1, shape.head_dim)
        rotated = shape.heads + shape.key_value_heads
        both, value = projected[:, :rotated], projected[:, rotated:]
        if layer.query_norm is not None and layer.key_norm is not None:
            both = self._scaled(both)
            both[:, : shape.heads] *= layer.query_norm
            both[:, shape.heads :] *= layer.key_norm
        query, key = both[:, : shape.heads], both[:, shape.heads :]
        return self._rotate(query, rotation), self._rotate(key, rotation), value

    def _rotate(self, heads: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Rotate neighbouring pairs of [n, heads, D] by `rotation` [n, 1, D/2] (complex)."""
        pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * rotation).flatten(-2).to(self.dtype)

    def _bias(self, lengths: torch.Tensor, span: Span) -> torch.Tensor:
        """What hides cache positions after the newest token: [span * key_value_heads, 1, L]."""
        positions = torch.arange(span.length, device=self.device)
        is_hidden = positions > lengths[span.start : span.stop, None]
        bias = torch.zeros(is_hidden.shape, dtype=self.dtype, device=self.device)
        bias.masked_fill_(is_hidden, -torch.inf)
        bias = bias.unsqueeze(1).expand(-1, self.shape.key_value_heads, -1)
        return bias.reshape(-1, 1, span.length)

    def _attend_cache(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        spans: Sequence[Span],
        biases: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Attention of one query per slot over its cached tokens: [n, heads * D]."""
        shape = self.shape
        groups = shape.heads // shape.key_value_heads
        query = query.view(-1, groups, shape.head_dim)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        attended = torch.empty_like(query)
        scale = shape.head_dim**-0.5
        for span, bias in zip(spans, biases, strict=True):
            part = slice(span.start * shape.key_value_heads, span.stop * shape.key_value_heads)
            scores = torch.baddbmm(bias, query[part], keys[part, :, : span.length], alpha=scale)
            weights = torch.softmax(scores, dim=-1)
            torch.bmm(weights, values[part, : span.length], out=attended[part])
        return attended.view(-1, shape.query_size)

    def _attend_prompt(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Causal attention inside prompts: [M * C, heads * D].

        Args:
            query: [M * C, heads, D].
            key: [M, key_value_heads, D, L].
            value: [M, key_value_heads, L, D].
            mask: bool [C, L], or None where C = L.
        """
        shape = self.shape
        rows = len(key)
        groups = shape.heads // shape.key_value_heads
        query = query.view(rows, -1, shape.key_value_heads, groups, shape.head_dim)
        query = query.permute(0, 2, 3, 1, 4).flatten(0, 1)  # [M * kv, groups, C, D]
        key = key.transpose(2, 3).flatten(0, 1).unsqueeze(1).expand(-1, groups, -1, -1)
        value = value.flatten(0, 1).unsqueeze(1).expand(-1, groups, -1, -1)
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        attended = attended.unflatten(0, (rows, -1)).permute(0, 3, 1, 2, 4)
        return attended.reshape(-1, shape.query_size)

    def _finish_layer(
        self, layer: LeanLayer, hidden: torch.Tensor, attended: torch.Tensor
    ) -> torch.Tensor:
        """Output projection and MLP, each added to the residual stream [n, H]."""
        hidden = torch.addmm(hidden, attended, layer.output.t())
        if layer.output_bias is not None:
            hidden += layer.output_bias
        normed = self._scaled(hidden) * layer.mlp_norm
        gate, up = functional.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        hidden = torch.addmm(hidden, functional.silu(gate).mul_(up), layer.down.t())
        if layer.down_bias is not None:
            hidden += layer.down_bias
        return hidden

    def _scaled(self, values: torch.Tensor) -> torch.Tensor:
        """Values over their root mean square along the last dim: RMSNorm before its weight.

        Faster on a CPU than `rms_norm`, which is composed of slower operations there.
        """
        size = values.shape[-1]
        norm = torch.linalg.vector_norm(values, dim=-1, keepdim=True, dtype=torch.float32)
        inverse = torch.addcmul(self._epsilon, norm, norm, value=1.0 / size).rsqrt_()
        return (values * inverse).to(self.dtype)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(self._scaled(hidden) * self._weights.norm, self._weights.head)


def check_family(config: PretrainedConfig, *, max_length: int) -> None:
    """Refuse (UnsupportedError) what the lean forward doesn't compute exactly."""
    reasons: list[str] = []
    if config.model_type not in FAMILIES:
        reasons.append(f"its family is {config.model_type}, known are {', '.join(FAMILIES)}")
    else:
        if config.hidden_act != "silu":
            reasons.append(f"its activation is {config.hidden_act}, not silu")
        rope_type = config.rope_parameters["rope_type"]
        if any(word in rope_type for word in _CHANGING_ROPE):
            reasons.append(f"its rope type {rope_type} depends on the longest sequence of a batch")
        window = sliding_window(config)
        if window is not None and max_length > window:
            reasons.append(f"its sliding window of {window} is below max_length {max_length}")
    if reasons:
        raise UnsupportedError(
            f"the lean forward doesn't fit this model: {'; '.join(reasons)}. "
            f"Set engine.forward=generic."
        )


def sliding_window(config: PretrainedConfig) -> int | None:
    """Tokens that a sliding layer attends to, or None where every layer attends to all."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds: Sequence[str] | None = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return window


def _shape(config: PretrainedConfig, names: Mapping[str, torch.Tensor]) -> LeanShape:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    embedding, head = names.get("model.embed_tokens.weight"), names.get("lm_head.weight")
    if embedding is None or head is None:
        raise UnsupportedError(
            "the lean forward needs model.embed_tokens.weight and lm_head.weight, which the model "
            "doesn't have; set engine.forward=generic."
        )
    return LeanShape(
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocabulary=embedding.shape[0],
        epsilon=config.rms_norm_eps,
        is_tied=head is embedding,
    )


def _rotations(model: PreTrainedModel, head_dim: int, max_length: int) -> torch.Tensor:
    """The rotation of every position as complex numbers [max_length, D/2], scaling included.

    Computed by the model's own rotary embedding, so that each fixed rope type is exact.
    """
    rotary = copy.deepcopy(model.model.rotary_emb).to("cpu")
    positions = torch.arange(max_length).unsqueeze(0)
    with torch.no_grad():
        cosine, sine = rotary(torch.zeros(1, dtype=torch.float32), positions)
    half = head_dim // 2
    is_standard = (
        cosine.shape[-1] == head_dim
        and torch.equal(cosine[..., :half], cosine[..., half:])
        and torch.equal(sine[..., :half], sine[..., half:])
    )
    if not is_standard:
        raise UnsupportedError(
            "the lean forward needs a rotary embedding over the whole head; "
            "set engine.forward=generic."
        )
    return torch.complex(cosine[0, :, :half], sine[0, :, :half])
