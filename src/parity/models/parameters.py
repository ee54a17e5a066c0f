"""The names of a model's weights, each storage once: what is sent, saved and loaded.

Used by the trainer's publication, by engines and by exports. Names are those of the model's
`state_dict()`, in its order; buffers that it holds are weights too. A tied weight (one
storage under several names) goes by the first name; the others are its aliases. Invariant:
`named_weights` and `aliases_of` together name every key of `state_dict()` exactly once.
"""

from collections.abc import Hashable, Iterator

from torch import Tensor, nn


def named_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Name and tensor of every weight, detached, without copies and without aliases."""
    return [(name, tensor.detach()) for name, tensor, sent in _walk(model) if name == sent]


def aliases_of(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """The tied weights as (alias, name that is sent)."""
    return tuple((name, sent) for name, _, sent in _walk(model) if name != sent)


def _walk(model: nn.Module) -> Iterator[tuple[str, Tensor, str]]:
    """Name, tensor and the first name of its storage, in the order of the state dict."""
    first: dict[Hashable, str] = {}
    # keep_vars hands out the parameters themselves, so that a tied one is one object.
    for name, tensor in model.state_dict(keep_vars=True).items():
        yield name, tensor, first.setdefault(_storage(tensor), name)


def _storage(tensor: Tensor) -> Hashable:
    """Equal for two tensors exactly where they are the same elements of the same memory."""
    is_plain = type(tensor) in (Tensor, nn.Parameter)
    if not is_plain or tensor.is_meta or tensor.numel() == 0:
        return id(tensor)  # no memory of its own to compare (sharded, meta, empty)
    storage = tensor.untyped_storage().data_ptr()
    return (str(tensor.device), storage, tensor.storage_offset(), tensor.shape, tensor.stride())
