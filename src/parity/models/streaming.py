"""Weights read from safetensors files into a model that no process holds whole.

    meta_model      config -> a model without memory (meta device), its buffers made
    plan.py         files -> which tensors become which weight; what doesn't fit is refused
    WeightStream    fills the memory that the model was given since, one tensor at a time

Used by the trainer of several ranks: between the first and the last line the model is spread
over the ranks, and each is given memory for its own part alone. Only that part is read; a
weight that is made of several tensors of the files is held whole while it is made. Invariant:
the weights are those of `load_model`, bit for bit, or they are refused before anything is read.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from parity.models.config import ModelConfig
from parity.models.loading import (
    DTYPES,
    check_complete,
    load_model,
    quiet,
    read_config,
    sentences,
    vocab_size,
)
from parity.models.paths import Place, find
from parity.models.plan import Direct, Plan, Stored
from parity.models.rendering import check_vocabulary

logger = logging.getLogger(__name__)

SINGLE, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
# Keys of a config.json under which other files, or other tensors, are meant than are listed here.
OWN_WAYS: Mapping[str, str] = {
    "quantization_config": "its weights are quantised",
    "transformers_weights": "its config.json names a weight file of its own",
    "fusion_config": "its config.json fuses modules",
}
Read = Callable[[tuple[slice, ...]], Tensor]  # a part of one tensor, by index


class WeightStream:
    """The weights of one model's files, for any model of that kind whose memory is there."""

    def __init__(self, place: Place, plan: Plan) -> None:
        self._place = place
        self._plan = plan

    def fill(self, model: PreTrainedModel) -> None:
        """Copy into each weight of `model` the part that this rank holds of it.

        Raises CheckpointError for a damaged file.
        """
        live = model.state_dict(keep_vars=True)
        with sentences(self._place), torch.no_grad(), ExitStack() as stack:
            files = _Files(stack, self._plan.stored)
            for name, read in self._tensors(model, files):
                _copy(live[name], read)

    def _tensors(self, model: PreTrainedModel, files: "_Files") -> Iterator[tuple[str, Read]]:
        """Each weight once, with what reads a part of it."""
        for source in self._plan.sources:
            if isinstance(source, Direct):
                yield source.name, files.reader(source.key)
                continue
            made = source.make(model, files.whole)
            for name in source.names:
                yield name, made[name].__getitem__
            del made  # before the next one is read


def load_streamed(
    config: ModelConfig,
    *,
    dtype: str,
    device: torch.device,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> tuple[PreTrainedModel, WeightStream | None]:
    """The model of `config` on the meta device and what fills it, its buffers on `device`.

    Where its files can't be read in parts: the whole model on `device` and None, with the
    reason logged. Raises what `load_model` raises.
    """
    place = find(config.path, key="model.path")
    model_config = read_config(place, config)
    if tokenizer is not None:
        check_vocabulary(tokenizer, vocab_size(model_config))
    found = _streamed(place, config, model_config, dtype=DTYPES[dtype], device=device)
    if not isinstance(found, str):
        return found
    logger.warning("event=model_loaded_whole path=%s reason=%s", place.path, found)
    return load_model(config, dtype=dtype, device=device), None


def open_stream(path: Path, model: PreTrainedModel) -> WeightStream | str:
    """What reads a folder that this very kind of model was saved to; or why it must be whole."""
    place = Place(str(path), is_folder=True, is_offline=True)
    with sentences(place):
        files = _weight_files(place)
        if files is None:
            return "it has no safetensors files"
        plan = Plan.of(model, Stored.read(files))
    if plan.reason is not None:
        return plan.reason
    check_complete(place, plan.faults)
    return WeightStream(place, plan)


def _streamed(
    place: Place,
    config: ModelConfig,
    model_config: PreTrainedConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[PreTrainedModel, WeightStream] | str:
    """The model and its stream, or why it must be loaded whole."""
    with quiet(), sentences(place):
        reason = _own_way(place, config, model_config)
        files = None if reason is not None else _weight_files(place)
        if files is None:
            return reason or "it has no safetensors files"
        model = _meta_model(place, config, model_config, dtype)
        plan = Plan.of(model, Stored.read(files))
    if plan.reason is not None:
        return plan.reason
    check_complete(place, plan.faults)
    _make_buffers(model, device)
    return model.eval(), WeightStream(place, plan)


def _own_way(place: Place, config: ModelConfig, model_config: PreTrainedConfig) -> str | None:
    """Why only `from_pretrained` knows how this model is read; None where it doesn't matter."""
    said = model_config.to_dict()
    if config.trust_remote_code and said.get("auto_map"):
        return "it brings its own code"
    reasons = [reason for key, reason in OWN_WAYS.items() if said.get(key)]
    if reasons:
        return reasons[0]
    return "it is an adapter" if _file(place, ADAPTER) is not None else None


def _weight_files(place: Place) -> list[Path] | None:
    """The safetensors files of the model, fetched where they aren't on this disk."""
    if (single := _file(place, SINGLE)) is not None:
        return [single]
    if (index := _file(place, INDEX)) is None:
        return None
    names, _ = get_checkpoint_shard_files(place.path, str(index), local_files_only=place.is_offline)
    return [Path(name) for name in names]


def _file(place: Place, name: str) -> Path | None:
    if place.is_folder:
        path = Path(place.path) / name
        return path if path.is_file() else None
    found = cached_file(
        place.path,
        name,
        local_files_only=place.is_offline,
        _raise_exceptions_for_missing_entries=False,
    )
    return None if found is None else Path(found)


def _meta_model(
    place: Place, config: ModelConfig, model_config: PreTrainedConfig, dtype: torch.dtype
) -> PreTrainedModel:
    """The model without memory, with the configs that `from_pretrained` gives it."""
    with torch.device("meta"):
        model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
            model_config, dtype=dtype, attn_implementation=config.attention
        )
    model.name_or_path = model.config.name_or_path = place.path
    if model.can_generate():
        read, is_offline = transformers.GenerationConfig.from_pretrained, place.is_offline
        try:
            model.generation_config = read(place.path, local_files_only=is_offline)
        except OSError:  # it has none: what its config.json says of generation
            model.generation_config = read(
                place.path,
                config_file_name="config.json",
                local_files_only=is_offline,
                _from_model_config=True,
            )
    return model


def _make_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Compute what no file holds (rotary frequencies, say) as `from_pretrained` does."""
    for name, buffer in list(model.named_non_persistent_buffers()):
        owner, _, leaf = name.rpartition(".")
        made = torch.empty_like(buffer, device=device)
        model.get_submodule(owner).register_buffer(leaf, made, persistent=False)
    for tensor in model.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True  # pyright: ignore[reportAttributeAccessIssue]
    model.initialize_weights()


def _copy(target: Tensor, read: Read) -> None:
    """Copy this rank's part of a tensor into `target`, converting the type."""
    if not isinstance(target, DTensor):
        target.copy_(read(tuple(slice(0, size) for size in target.shape)))
        return
    shape, offset = compute_local_shape_and_global_offset(
        target.shape, target.device_mesh, target.placements
    )
    local = target.to_local()
    if local.numel():  # there may be more ranks than rows
        local.copy_(read(tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))))


class _Files:
    """The open weight files of one pass."""

    def __init__(self, stack: ExitStack, stored: Mapping[str, Stored]) -> None:
        self._stored = stored
        paths = sorted({each.path for each in stored.values()})
        self._open = {p: stack.enter_context(safe_open(p, framework="pt")) for p in paths}

    def whole(self, key: str) -> Tensor:
        """A tensor of the files."""
        return self._open[self._stored[key].path].get_tensor(key)

    def reader(self, key: str) -> Read:
        """What reads a part of a tensor of the files."""
        stored = self._stored[key]
        if not stored.shape:  # a scalar has no parts
            return lambda _: self.whole(key)
        part = self._open[stored.path].get_slice(key)
        return part.__getitem__
