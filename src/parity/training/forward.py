"""A causal language model seen as a scorer of given tokens; used by `trainer.py`.

Hidden states come from the decoder alone and only those that predict a trained token reach
the head. A head that is more than one matrix (bias, softcapping, scaling) is left to the
model: then its own logits are used, for all columns, and the reason is logged once.
The model runs in evaluation mode throughout: dropout would make the trainer score another
policy than the one the engine samples from, so it is off, whatever the config says.
With a low-precision `dtype` the float32 weights stay and matrix products run under
autocast; log-probs are computed in float32 from logits in that dtype.
"""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from parity.errors import UnsupportedError
from parity.models.loading import vocab_size
from parity.training.config import Dtype, TrainerConfig
from parity.training.logprobs import logits_logprobs, token_logprobs
from parity.training.micro_batch import MicroBatch

logger = logging.getLogger(__name__)

HEAD_TOLERANCE = 1e-3  # of the largest logit, between the model's own logits and ours
MASKED_ATTENTION = ("sdpa", "eager")  # attention code that honours a mask of any shape
# Config keys of known families whose logits aren't just hidden @ weight.T, with "off" values.
SCALING_KEYS: Mapping[str, tuple[float | None, ...]] = {
    "final_logit_softcapping": (None,),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "lm_head_multiplier": (None, 1),
}


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Of the trained tokens of a micro-batch, [T] each, float32."""

    logprobs: Tensor
    entropy: Tensor  # nats; carries gradient only where that was asked for


class Scorer(nn.Module):
    """Scores the trained tokens of micro-batches under one model and one temperature.

    A module, so that what shards a model (FSDP2) sees decoder and head used in one forward.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        config: TrainerConfig,
        temperature: float,
        device: torch.device,
    ) -> None:
        """`model` is on `device` in float32; `temperature` is the sampling one, > 0.

        A model without memory (meta device) is spread and filled next, then `settle` is called.
        """
        super().__init__()
        self.model = model
        self._config = config
        self._temperature = temperature
        self._device = device
        self._autocast_dtype = _autocast_dtype(config.dtype)
        self._uses_own_logits: bool | None = None
        if model.device.type != "meta":
            self._settle()

    def settle(self) -> None:
        """Decide how logits are computed, where it isn't yet; all ranks together."""
        if self._uses_own_logits is None:
            with torch.no_grad():
                self(None, False)

    def _settle(self) -> None:
        reason = own_logits_reason(self.model, device=self._device)
        self._uses_own_logits = reason is not None
        if reason is not None:
            logger.info("event=own_logits model=%s reason=%s", type(self.model).__name__, reason)

    def scores(
        self, micro_batch: MicroBatch, *, needs_entropy_gradient: bool = False
    ) -> TokenScores:
        """Log-probs and entropies of the trained tokens, differentiable where grad is on."""
        logprobs, entropy = self(micro_batch, needs_entropy_gradient)
        return TokenScores(logprobs, entropy)

    def forward(
        self,
        micro_batch: MicroBatch | None,
        needs_entropy_gradient: bool,  # noqa: FBT001 (hooks of modules pass by position)
    ) -> tuple[Tensor, Tensor]:
        """The same as a plain tuple, which the hooks of a sharded module can look into.

        None only settles what `settle` must: a sharded model's weights are whole in here alone.
        """
        if micro_batch is None:
            with self._autocast():  # gathered weights may be of low precision
                self._settle()
            return torch.empty(0), torch.empty(0)
        assert self._uses_own_logits is not None, "settle() comes first"
        outputs = self.outputs(micro_batch)
        if self._uses_own_logits:
            logprobs, entropy = logits_logprobs(
                outputs,
                micro_batch.targets,
                temperature=self._temperature,
                needs_entropy_gradient=needs_entropy_gradient,
            )
        else:
            head = self.model.get_output_embeddings()
            assert isinstance(head, nn.Linear), "checked by own_logits_reason"
            logprobs, entropy = token_logprobs(
                outputs,
                head.weight,
                micro_batch.targets,
                temperature=self._temperature,
                chunk=self._config.vocabulary_chunk,
                needs_entropy_gradient=needs_entropy_gradient,
            )
        return micro_batch.per_token(logprobs), micro_batch.per_token(entropy)

    def outputs(self, micro_batch: MicroBatch) -> Tensor:
        """What each prediction is made from: hidden states [U, H], or the model's own logits."""
        module = self.model if self._uses_own_logits else self.model.get_decoder()
        with self._autocast():
            mask = micro_batch.attention_mask()
            if mask is None:
                result = module(input_ids=micro_batch.tokens, use_cache=False)
            else:
                result = module(
                    input_ids=micro_batch.tokens,
                    attention_mask=self._shaped(mask),
                    position_ids=micro_batch.positions,
                    use_cache=False,
                )
        values = result.logits if self._uses_own_logits else result.last_hidden_state
        places = micro_batch.rows * values.shape[1] + micro_batch.columns
        chosen = values.flatten(0, 1).index_select(0, places)
        return chosen if self._autocast_dtype is None else chosen.to(self._autocast_dtype)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self._device.type,
            dtype=self._autocast_dtype or torch.bfloat16,
            enabled=self._autocast_dtype is not None,
        )

    def _shaped(self, mask: Tensor) -> Tensor:
        """The mask as the model's attention code takes it: `eager` adds it to the scores."""
        if attention_name(self.model) != "eager":
            return mask
        dtype = self._autocast_dtype or torch.float32
        zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return zeros.masked_fill(~mask, torch.finfo(dtype).min)


def attention_name(model: PreTrainedModel) -> str:
    """Which attention code the model runs, as `model.attention` names it."""
    return str(model.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]


def own_logits_reason(model: PreTrainedModel, *, device: torch.device) -> str | None:
    """Why the head can't be computed as hidden @ weight.T; None where it can.

    Known families are told by their config; any other by comparing both on a few tokens.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return f"the head is {type(head).__name__}, not a plain linear layer"
    if "bias" in dict(head.named_parameters()):
        return "the head has a bias"
    config = model.config.get_text_config().to_dict()
    scaled = [f"{key} is {config[key]}" for key in SCALING_KEYS if not _is_off(config, key)]
    return scaled[0] if scaled else _logits_gap(model, head, device)


def _is_off(config: Mapping[str, object], key: str) -> bool:
    return config.get(key) in SCALING_KEYS[key]


def _logits_gap(model: PreTrainedModel, head: nn.Linear, device: torch.device) -> str | None:
    """How far the model's own logits are from hidden @ weight.T; None where they agree."""
    decoder = model.get_decoder()
    if decoder is model:
        return "the model has no decoder of its own"
    tokens = probe_tokens(12, vocabulary=vocab_size(model.config)).view(2, 6).to(device)
    with torch.no_grad():
        own = model(input_ids=tokens, use_cache=False).logits
        hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
        if hidden.shape[-1] != head.in_features:
            return f"the head takes {head.in_features} features, not {hidden.shape[-1]}"
        ours = head(hidden)
    gap = float((own - ours).abs().max() / own.abs().max())
    if gap <= HEAD_TOLERANCE:
        return None
    return f"its logits differ from hidden @ weight.T by {gap:.2g} of the largest"


def probe_tokens(count: int, *, vocabulary: int) -> Tensor:
    """`count` token ids [count] spread over the vocabulary, the same ones every time."""
    return (torch.arange(count) * 7919 + 13) % vocabulary


def prepare_model(
    model: PreTrainedModel, *, gradient_checkpointing: bool, device: torch.device
) -> None:
    """Put the model on `device`, in float32 and evaluation mode, in place.

    One without memory (meta device) stays without; its buffers are on `device` already.
    Gradient checkpointing needs the training flag on the modules that are recomputed; it is
    set on those alone, not on what is inside them, and their own dropout rates become 0.
    """
    where = None if model.device.type == "meta" else device
    nn.Module.to(model, device=where, dtype=torch.float32)
    model.eval()
    if not gradient_checkpointing:
        return
    if not model.supports_gradient_checkpointing:
        raise UnsupportedError(
            f"trainer.gradient_checkpointing is true but {type(model).__name__} doesn't support it;"
            " set trainer.gradient_checkpointing=false."
        )
    with warnings.catch_warnings():  # a newer name is offered, which older releases lack
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if _is_recomputed(module):
            module.training = True
            for name, value in vars(module).items():
                if "drop" in name and isinstance(value, float):
                    setattr(module, name, 0.0)


def _is_recomputed(module: nn.Module) -> bool:
    return vars(module).get("gradient_checkpointing") is True


def _autocast_dtype(dtype: Dtype) -> torch.dtype | None:
    if dtype == "float16":
        raise UnsupportedError(
            "trainer.dtype is float16, whose gradients need loss scaling, which Parity doesn't do;"
            " set trainer.dtype=bfloat16 or float32."
        )
    return torch.bfloat16 if dtype == "bfloat16" else None
