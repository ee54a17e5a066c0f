"""The lean forward equals the model for every variant it accepts, and refuses the others."""

from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from parity.engines.embedded.decoders.lean import LeanDecoder
from parity.engines.embedded.decoders.probe import relative_error
from parity.errors import UnsupportedError

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    """Nothing that would hide a mistake: no zero bias, no norm weight of one."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.eval()


def lean(model: PreTrainedModel, *, max_length: int = 64) -> LeanDecoder:
    return LeanDecoder(
        model, dtype=torch.float32, device=torch.device("cpu"), max_length=max_length
    )


def error_of(model: PreTrainedModel) -> float:
    return relative_error(lean(model), model, max_length=64)


@pytest.mark.parametrize("rope", ROPES)
def test_every_fixed_rope_type_is_exact(rope: str) -> None:
    model = randomized(LlamaForCausalLM(LlamaConfig(**SMALL, rope_parameters=ROPES[rope])))
    assert error_of(model) < 1e-5


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("heads", [1, 4], ids=["one_kv_head", "as_many_kv_heads"])
def test_biases_head_groups_and_tied_embeddings_are_exact(*, tied: bool, heads: int) -> None:
    small: dict[str, Any] = SMALL | {"num_key_value_heads": heads, "tie_word_embeddings": tied}
    llama = LlamaConfig(**small, attention_bias=True, mlp_bias=True, head_dim=6)
    assert error_of(randomized(LlamaForCausalLM(llama))) < 1e-5
    assert error_of(randomized(Qwen2ForCausalLM(Qwen2Config(**small)))) < 1e-5
    qwen3 = Qwen3Config(**small, attention_bias=True, head_dim=16)
    assert error_of(randomized(Qwen3ForCausalLM(qwen3))) < 1e-5


def test_low_precision_stays_close() -> None:
    model = randomized(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)))
    decoder = LeanDecoder(model, dtype=torch.bfloat16, device=torch.device("cpu"), max_length=64)
    assert relative_error(decoder, model, max_length=64) < 0.1


def test_a_window_that_no_request_can_leave_is_no_obstacle() -> None:
    model = randomized(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=64)))
    assert error_of(model) < 1e-5
    with pytest.raises(UnsupportedError, match="sliding window of 64 is below max_length 65"):
        lean(model, max_length=65)


def test_the_weights_are_copies() -> None:
    model = randomized(Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)))
    decoder = lean(model)
    theirs = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    ours = {tensor.untyped_storage().data_ptr() for tensor in decoder.staged().values()}
    decoder.swap()
    ours |= {tensor.untyped_storage().data_ptr() for tensor in decoder.staged().values()}
    assert not theirs & ours
    before = {name: tensor.clone() for name, tensor in decoder.staged().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for name, tensor in decoder.staged().items():
        assert torch.equal(tensor, before[name])


def test_every_name_of_the_model_has_a_destination_of_its_size() -> None:
    model = randomized(Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True)))
    decoder = lean(model)
    state = model.state_dict()
    assert decoder.expected == {name: tuple(tensor.shape) for name, tensor in state.items()}
    staged = decoder.staged()
    assert staged.keys() == state.keys()
    assert all(staged[name].numel() == state[name].numel() for name in state)
    assert staged["lm_head.weight"] is staged["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": ROPES["default"] | {"rope_type": "dynamic", "factor": 2.0}}, "rope"),
    ],
)
def test_what_it_does_not_compute_exactly_is_refused(change: dict[str, Any], reason: str) -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL | change))
    with pytest.raises(UnsupportedError, match=reason):
        lean(model)


def test_a_model_with_a_tensor_more_is_refused() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    gain = torch.nn.Parameter(torch.ones(3))
    model.get_submodule("model.layers.1.mlp").register_parameter("gain", gain)
    with pytest.raises(UnsupportedError, match=r"layers\.1\.mlp\.gain"):
        lean(model)
