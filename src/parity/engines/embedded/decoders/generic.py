"""The generic forward: any Hugging Face causal model that keeps keys and values per token.

Drives `model.forward` with a cache object of ours that writes into the engine's slots, with
explicit four-dimensional masks and position ids, so that requests join and leave between two
tokens. Whether a model honours all that is found out by `probe.py` when the engine is built.
"""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from parity.engines.embedded.cache import LayerShape, SlotCache
from parity.engines.embedded.decoders.decoder import Decoder, Span, named_tensors
from parity.errors import UnsupportedError

_CACHE_ARGUMENTS = ("cache", "past_key_values")  # newer name first
_ATTENTION = ("sdpa", "eager")  # implementations that take an additive mask
_KINDS = ("full_attention", "sliding_attention")


@dataclass(slots=True)
class _View:
    """Where the forward pass that runs now reads and writes; shared by all layers."""

    cache: SlotCache | None  # None: only note the shapes
    slots: torch.Tensor  # int64 [rows]
    positions: torch.Tensor  # int64 [rows] while decoding: where each row's token goes
    start: int  # position of the first column while prefilling
    length: int  # tokens attended to, the new ones included
    is_prefill: bool


class _SlotLayer(CacheLayerMixin):
    """One layer of the cache as transformers sees it."""

    is_sliding = False  # window masks come from us

    def __init__(self, index: int, owner: "_Bridge") -> None:
        super().__init__()
        self.is_initialized = True
        self._index = index
        self._owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the slots exist."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values [rows, heads, C, D]; all that is attended to."""
        return self._owner.store(self._index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of what is attended to."""
        return self._owner.view.length, 0

    def get_seq_length(self) -> int:
        """Tokens before the new ones, at most."""
        return self._owner.view.start

    def get_max_length(self) -> int:
        """No limit here: the engine refuses what is too long."""
        return -1

    def get_max_cache_shape(self) -> int:
        """The older name of `get_max_length`."""
        return -1


class _Bridge(Cache):
    """A transformers cache that keeps everything in the engine's slots."""

    def __init__(self, num_layers: int, view: _View) -> None:
        self.view = view
        self.shapes: dict[int, LayerShape] = {}
        super().__init__(layers=[_SlotLayer(index, self) for index in range(num_layers)])

    def store(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values into the slots; what is attended to."""
        view = self.view
        if view.cache is None:
            self.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])
            return key, value
        keys, values = view.cache.keys[layer], view.cache.values[layer]
        if not view.is_prefill:
            keys[view.slots, :, view.positions] = key.squeeze(2)
            values[view.slots, :, view.positions] = value.squeeze(2)
            rows = len(key)
            return keys[:rows, :, : view.length], values[:rows, :, : view.length]
        keys[view.slots, :, view.start : view.length] = key
        values[view.slots, :, view.start : view.length] = value
        if view.start == 0:
            return key, value
        return keys[view.slots, :, : view.length], values[view.slots, :, : view.length]


class GenericDecoder(Decoder):
    """`model.forward` of a copy of a Hugging Face model."""

    name = "generic"
    uses_spans = False

    def __init__(
        self, model: PreTrainedModel, *, dtype: torch.dtype, device: torch.device, max_length: int
    ) -> None:
        """Copy `model`.

        Raises UnsupportedError where it keeps no key-value cache or can't take our masks.
        """
        _check_kind(model, max_length=max_length)
        self.device = device
        self.dtype = dtype
        self._model = _own_copy(model, dtype=dtype, device=device)
        self.vocabulary_size = _vocabulary_size(self._model)
        parameters = inspect.signature(self._model.forward).parameters
        self._cache_argument = next(name for name in _CACHE_ARGUMENTS if name in parameters)
        self._keeps_logits = "logits_to_keep" in parameters
        self._windows = attention_windows(self._model.config, max_length=max_length)
        self._live = named_tensors(self._model)
        self._expected = {name: tuple(tensor.shape) for name, tensor in self._live.items()}
        self._staged: dict[str, torch.Tensor] | None = None
        none = torch.zeros(0, dtype=torch.int64, device=device)
        view = _View(None, none, none, start=0, length=2, is_prefill=True)
        self._bridge = _Bridge(self._model.config.get_text_config().num_hidden_layers, view)
        self._shapes = self._find_shapes()

    @property
    def expected(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by Hugging Face name."""
        return self._expected

    def new_cache(self) -> SlotCache:
        """An empty cache in the layout that attention functions expect."""
        return SlotCache(self._shapes, keys_transposed=False, dtype=self.dtype, device=self.device)

    def served(self) -> Mapping[str, torch.Tensor]:
        """The model's own tensors."""
        return {name: live.data for name, live in self._live.items()}

    def staged(self) -> Mapping[str, torch.Tensor]:
        """Destinations of the next weights; tied names share one."""
        if self._staged is None:
            by_tensor = {id(live): torch.zeros_like(live.data) for live in self._live.values()}
            self._staged = {name: by_tensor[id(live)] for name, live in self._live.items()}
        return self._staged

    def swap(self) -> None:
        """Exchange the storage of the model's tensors with the staged one."""
        if self._staged is None:
            raise AssertionError("swap without staged weights")
        old = {name: live.data for name, live in self._live.items()}
        for name, live in self._live.items():
            live.data = self._staged[name]
        self._staged = old

    def drop_staged(self) -> None:
        """Forget the set of weights that isn't decoded with."""
        self._staged = None

    def free(self) -> None:
        """Drop both sets of weights."""
        self._staged = None
        for live in self._live.values():
            live.data = torch.zeros(0, dtype=live.dtype, device=self.device)

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
        self._bridge.view = _View(cache, slots, slots, start, stop, is_prefill=True)
        positions = torch.arange(start, stop, device=self.device).expand(rows, -1)
        wanted, place = last.unique(return_inverse=True)
        logits = self._forward(tokens, positions, keep=wanted)
        return logits[torch.arange(rows, device=self.device), place]

    def decode(
        self,
        cache: SlotCache,
        *,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        spans: Sequence[Span],
    ) -> torch.Tensor:
        """Take one token per slot; see the contract. All slots attend to the longest span."""
        length = max(span.length for span in spans)
        slots = torch.arange(len(tokens), device=self.device)
        self._bridge.view = _View(cache, slots, lengths, 0, length, is_prefill=False)
        return self._forward(tokens.unsqueeze(1), lengths.unsqueeze(1), keep=None)[:, 0]

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, *, keep: torch.Tensor | None
    ) -> torch.Tensor:
        """Logits [rows, kept columns, V] of tokens [rows, C] at `positions`."""
        arguments: dict[str, object] = {self._cache_argument: self._bridge}
        if self._keeps_logits and keep is not None:
            arguments["logits_to_keep"] = keep
        logits = self._model(
            input_ids=tokens,
            attention_mask=self._mask(positions),
            position_ids=positions,
            use_cache=True,
            **arguments,
        ).logits
        if keep is not None and not self._keeps_logits:
            return logits[:, keep]
        return logits

    def _mask(self, positions: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Additive masks [rows, 1, C, length], one or one per kind of layer."""
        seen = torch.arange(self._bridge.view.length, device=self.device)
        distance = positions[:, None, :, None] - seen
        masks: dict[str, torch.Tensor] = {}
        for kind, window in self._windows.items():
            is_hidden = distance < 0
            if window is not None:
                is_hidden |= distance >= window
            mask = torch.zeros(is_hidden.shape, dtype=self.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(is_hidden, torch.finfo(self.dtype).min)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _find_shapes(self) -> list[LayerShape]:
        """What each layer keeps per token, seen in a forward pass over two tokens."""
        tokens = torch.zeros(1, 2, dtype=torch.int64, device=self.device)
        positions = torch.arange(2, device=self.device).unsqueeze(0)
        with torch.inference_mode():
            self._forward(tokens, positions, keep=positions[0])
        shapes = self._bridge.shapes
        if not shapes:
            raise UnsupportedError(
                f"{type(self._model).__name__} never wrote to its key-value cache, so the "
                f"embedded engine can't continue its requests; choose another model."
            )
        if len(shapes) != len(self._bridge.layers):
            raise UnsupportedError(
                f"{type(self._model).__name__} keeps keys and values in {len(shapes)} of its "
                f"{len(self._bridge.layers)} layers; the embedded engine needs them in all."
            )
        return [shapes[index] for index in range(len(shapes))]


def attention_windows(config: PretrainedConfig, *, max_length: int) -> dict[str, int | None]:
    """Kinds of layers by how far they attend back, None for all the way.

    Raises UnsupportedError for kinds that aren't known.
    """
    config = config.get_text_config()
    window: int | None = getattr(config, "sliding_window", None)
    if window is not None and window >= max_length:
        window = None
    layer_types: Sequence[str] | None = getattr(config, "layer_types", None)
    kinds = sorted(set(layer_types)) if layer_types else ["sliding_attention"]
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise UnsupportedError(
            f"the model has layers of kind {unknown}; the embedded engine knows {_KINDS}."
        )
    windows = {kind: window if kind == "sliding_attention" else None for kind in kinds}
    if len(set(windows.values())) == 1 and window is None:
        return {kinds[0]: None}  # one mask serves every layer
    return windows


def _check_kind(model: PreTrainedModel, *, max_length: int) -> None:
    """Refuse models whose state isn't keys and values by position, and too few positions."""
    name = type(model).__name__
    parameters = inspect.signature(model.forward).parameters
    has_cache = any(argument in parameters for argument in _CACHE_ARGUMENTS)
    if model._is_stateful or not has_cache:  # pyright: ignore[reportPrivateUsage]
        raise UnsupportedError(
            f"{name} keeps a recurrent state instead of a key-value cache; the embedded engine "
            f"decodes attention models only."
        )
    if "position_ids" not in parameters:
        raise UnsupportedError(
            f"{name} takes no position ids, so the embedded engine can't decode requests of "
            f"different lengths side by side."
        )
    config = model.config.get_text_config()
    positions: int | None = getattr(config, "max_position_embeddings", None)
    is_learned = getattr(config, "rope_parameters", None) is None
    if is_learned and positions is not None and max_length > positions:
        raise UnsupportedError(
            f"max_length is {max_length} and {name} has {positions} positions; "
            f"lower prompts.max_prompt_tokens or sampling.max_new_tokens to {positions} together."
        )


def _vocabulary_size(model: PreTrainedModel) -> int:
    """Rows of the input embedding: the ids that a prompt may hold."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, torch.nn.Embedding):
        raise UnsupportedError(
            f"{type(model).__name__} embeds tokens with {type(embedding).__name__}; the embedded "
            f"engine needs a torch.nn.Embedding."
        )
    return embedding.num_embeddings


def _own_copy(
    model: PreTrainedModel, *, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """A copy that shares nothing with `model`, ready for inference."""
    own = copy.deepcopy(model)
    for parameter in own.parameters():
        parameter.grad = None
    own.requires_grad_(requires_grad=False)
    own.eval()
    attention = own.config._attn_implementation  # pyright: ignore[reportPrivateUsage]
    if attention not in _ATTENTION:
        own.set_attn_implementation("sdpa")
    return own.to(device=device, dtype=dtype)  # pyright: ignore[reportCallIssue]
