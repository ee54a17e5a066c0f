"""Chooses the forward pass that serves a model, and checks it against the model itself.

Used by the engine when it is built. `auto` takes the lean forward where it fits and logs why
where it doesn't; nothing is served that doesn't give the model's own log-probs.
"""

import logging

import torch
from transformers import PreTrainedModel

from parity.engines.config import EngineDtype, ForwardPath
from parity.engines.embedded.decoders.decoder import Decoder
from parity.engines.embedded.decoders.generic import GenericDecoder
from parity.engines.embedded.decoders.lean import LeanDecoder
from parity.engines.embedded.decoders.probe import check_decoder
from parity.errors import UnsupportedError

logger = logging.getLogger(__name__)

_DTYPES: dict[EngineDtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# What a model's own code raises when it is called in a way that it doesn't know.
_MISUSE = (AttributeError, IndexError, LookupError, RuntimeError, TypeError, ValueError)


def build_decoder(
    model: PreTrainedModel,
    *,
    forward: ForwardPath,
    dtype: EngineDtype,
    device: torch.device,
    max_length: int,
) -> Decoder:
    """A decoder with its own copy of the model's weights.

    Raises UnsupportedError where no forward, or not the wanted one, can serve the model.
    """
    torch_dtype = _DTYPES[dtype]
    if forward != "generic":
        try:
            lean = LeanDecoder(model, dtype=torch_dtype, device=device, max_length=max_length)
            check_decoder(lean, model, dtype=torch_dtype, max_length=max_length)
        except UnsupportedError as reason:
            if forward == "lean":
                raise
            logger.info("engine forward=generic reason=%r", str(reason))
        else:
            return lean
    try:
        generic = GenericDecoder(model, dtype=torch_dtype, device=device, max_length=max_length)
        check_decoder(generic, model, dtype=torch_dtype, max_length=max_length)
    except _MISUSE as error:
        raise UnsupportedError(
            f"{type(model).__name__} can't be called with a cache of ours and explicit masks "
            f"({type(error).__name__}: {error}), so the embedded engine can't serve it."
        ) from error
    return generic
