"""The chosen forward is checked against the model, and the choice is never silent."""

import logging
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from parity.engines.config import ForwardPath
from parity.engines.embedded.decoders.decoder import Decoder
from parity.engines.embedded.decoders.selection import build_decoder
from parity.errors import UnsupportedError

CONFIG = LlamaConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    initializer_range=0.3,
)


class ScaledLlama(LlamaForCausalLM):
    """Says it is a llama and computes something else."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        output = super().forward(*args, **kwargs)
        assert output.logits is not None
        output.logits = output.logits * 0.9
        return output


class MaskBlindGpt2(GPT2LMHeadModel):
    """Ignores the masks that it is given."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Any,
        cache: Any = None,
        position_ids: Any = None,
        attention_mask: Any = None,
        **kwargs: Any,
    ) -> Any:
        return super().forward(input_ids, cache=cache, position_ids=position_ids, **kwargs)


def build(model: torch.nn.Module, forward: ForwardPath = "auto") -> Decoder:
    return build_decoder(
        model.eval(),  # pyright: ignore[reportArgumentType]
        forward=forward,
        dtype="float32",
        device=torch.device("cpu"),
        max_length=48,
    )


def test_the_lean_forward_is_taken_where_it_fits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert build(LlamaForCausalLM(CONFIG)).name == "lean"
    assert build(LlamaForCausalLM(CONFIG), "lean").name == "lean"
    assert not caplog.records
    assert build(LlamaForCausalLM(CONFIG), "generic").name == "generic"


def test_another_family_takes_the_generic_forward_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2))
    assert build(gpt2).name == "generic"
    assert "its family is gpt2" in caplog.text
    with pytest.raises(UnsupportedError, match="its family is gpt2"):
        build(gpt2, "lean")


def test_a_model_that_only_looks_like_its_family_is_found_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    torch.manual_seed(0)
    with pytest.raises(UnsupportedError, match="other log-probs than ScaledLlama"):
        build(ScaledLlama(CONFIG), "lean")


def test_a_model_that_ignores_masks_is_refused() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3)
    with pytest.raises(UnsupportedError, match="MaskBlindGpt2"):
        build(MaskBlindGpt2(config))


def test_the_model_keeps_its_training_mode() -> None:
    model = LlamaForCausalLM(CONFIG)
    build_decoder(
        model.train(),
        forward="auto",
        dtype="float32",
        device=torch.device("cpu"),
        max_length=48,
    )
    assert model.training
