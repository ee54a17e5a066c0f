"""The generic forward equals the model for very different families, and refuses the others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from parity.engines.embedded.decoders.generic import GenericDecoder, attention_windows
from parity.engines.embedded.decoders.probe import relative_error
from parity.errors import UnsupportedError

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
GROUPED: dict[str, Any] = SMALL | {"num_key_value_heads": 2}


def gpt_neox() -> PreTrainedModel:
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL, max_position_embeddings=64))


def mixture_of_experts() -> PreTrainedModel:
    config = MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)
    return MixtralForCausalLM(config)


def mixed_windows() -> PreTrainedModel:
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(
        Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=5, layer_types=kinds)
    )


def some_layers_slide() -> PreTrainedModel:
    config = Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    return Qwen2ForCausalLM(config)


def generic(model: PreTrainedModel, *, max_length: int = 64) -> GenericDecoder:
    return GenericDecoder(
        model, dtype=torch.float32, device=torch.device("cpu"), max_length=max_length
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [gpt_neox, mixture_of_experts, mixed_windows, some_layers_slide])
def test_it_gives_the_log_probs_of_the_model(
    make: Callable[[], PreTrainedModel], attention: str
) -> None:
    torch.manual_seed(0)
    model = make().eval()
    model.set_attn_implementation(attention)
    assert relative_error(generic(model), model, max_length=64) < 1e-5


def test_the_model_itself_is_left_as_it_was() -> None:
    model = gpt_neox().train()
    loss = model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss
    loss.backward()
    decoder = generic(model)
    assert model.training
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())
    theirs = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    ours = {tensor.untyped_storage().data_ptr() for tensor in decoder.staged().values()}
    decoder.swap()
    ours |= {tensor.untyped_storage().data_ptr() for tensor in decoder.staged().values()}
    assert not theirs & ours


def test_windows_are_known_per_kind_of_layer() -> None:
    config = Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=5)
    config.layer_types = ["sliding_attention", "full_attention"]
    assert attention_windows(config, max_length=64) == {
        "full_attention": None,
        "sliding_attention": 5,
    }
    assert attention_windows(config, max_length=5) == {"full_attention": None}
    assert list(attention_windows(GPT2Config(), max_length=9).values()) == [None]
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(UnsupportedError, match="chunked_attention"):
        attention_windows(config, max_length=64)


def test_a_recurrent_state_is_refused() -> None:
    config = MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(UnsupportedError, match="recurrent state"):
        generic(MambaForCausalLM(config))


def test_a_model_without_position_ids_is_refused() -> None:
    config = BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(UnsupportedError, match="position ids"):
        generic(BloomForCausalLM(config))


def test_more_tokens_than_learned_positions_are_refused() -> None:
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    model = GPT2LMHeadModel(config)
    generic(model, max_length=32)
    with pytest.raises(UnsupportedError, match="max_length is 33 and GPT2LMHeadModel has 32"):
        generic(model, max_length=33)
