import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, MambaConfig, MambaForCausalLM
from unit.training.tiny import CPU, tiny_model

from parity.training.config import TrainerConfig
from parity.training.forward import Scorer
from parity.training.sharing import sharing_fault


def fault_of(model, *, dtype="float32"):
    scorer = Scorer(model.eval(), config=TrainerConfig(dtype=dtype), temperature=1.0, device=CPU)
    return sharing_fault(scorer, is_low_precision=dtype != "float32", device=CPU)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2", "gemma2"])
def test_models_that_honour_the_mask_may_share(family):
    assert fault_of(tiny_model(family, attn_implementation="eager")) is None


def test_bfloat16_may_share_within_its_own_tolerance():
    assert fault_of(tiny_model(), dtype="bfloat16") is None


def test_a_model_that_ignores_the_mask_is_found_out():
    model = tiny_model("llama")
    forward = model.model.forward

    def deaf(*, attention_mask=None, **kwargs):
        return forward(**kwargs)

    model.model.forward = deaf
    fault = fault_of(model)
    assert fault is not None
    assert "differ" in fault


def test_a_model_that_refuses_positions_is_found_out():
    torch.manual_seed(0)
    model = BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=32, n_layer=2, n_head=4))
    fault = fault_of(model)
    assert fault is not None


def test_a_recurrent_model_is_found_out():
    torch.manual_seed(0)
    model = MambaForCausalLM(
        MambaConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, state_size=4)
    )
    assert fault_of(model) is not None


def test_attention_code_without_free_masks_is_refused_by_name():
    model = tiny_model()
    model.config._attn_implementation = "flash_attention_2"
    scorer = Scorer.__new__(Scorer)
    torch.nn.Module.__init__(scorer)
    scorer.model = model
    fault = sharing_fault(scorer, is_low_precision=False, device=CPU)
    assert fault is not None
    assert "flash_attention_2" in fault
