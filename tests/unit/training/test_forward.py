import logging

import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)
from unit.training.tiny import (
    CPU,
    FREE_ATTENTION,
    naive_logprobs,
    ragged_samples,
    tiny_model,
)

from parity.errors import UnsupportedError
from parity.training.config import TrainerConfig
from parity.training.forward import Scorer, own_logits_reason, prepare_model
from parity.training.packing import pack

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def scorer_of(model, *, temperature=1.0, **settings):
    config = TrainerConfig(**settings)
    prepare_model(model, gradient_checkpointing=config.gradient_checkpointing, device=CPU)
    return Scorer(model, config=config, temperature=temperature, device=CPU)


def parts_of(samples, *, sharing):
    return pack(
        samples,
        aggregation="token_mean",
        max_tokens=60,
        prefix_sharing=sharing,
        cost=FREE_ATTENTION,
    ).micro_batches


def assert_scores_are_naive(scorer, *, temperature, sharing):
    samples = ragged_samples(has_holes=True)
    for part in parts_of(samples, sharing=sharing):
        scores = scorer.scores(part)
        for index in part.sample_index.unique().tolist():
            mine = part.sample_index == index
            naive = naive_logprobs(scorer.model, samples[index], temperature=temperature)
            for found, expected in zip(
                (scores.logprobs[mine], scores.entropy[mine]), naive, strict=True
            ):
                torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("sharing", [False, True])
def test_scores_are_those_of_the_model_by_the_book(family, temperature, sharing):
    scorer = scorer_of(tiny_model(family), temperature=temperature, vocabulary_chunk=16)
    assert_scores_are_naive(scorer, temperature=temperature, sharing=sharing)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: tiny_model("gemma2"), "final_logit_softcapping is 30.0"),
        (lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.25)), "logit_scale is 0.25"),
        (lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=8.0)), "logits_scaling"),
    ],
)
def test_scaled_heads_use_the_models_own_logits_and_say_so_once(model, reason, caplog):
    with caplog.at_level(logging.INFO, logger="parity.training.forward"):
        scorer = scorer_of(model(), temperature=0.7)
        assert_scores_are_naive(scorer, temperature=0.7, sharing=False)
    (record,) = [r for r in caplog.records if "own_logits" in r.message]
    assert reason in record.message


def test_a_head_with_a_bias_uses_the_models_own_logits():
    model = tiny_model("llama")
    model.lm_head = nn.Linear(32, 40, bias=True)
    assert own_logits_reason(model, device=CPU) == "the head has a bias"
    assert_scores_are_naive(scorer_of(model), temperature=1.0, sharing=False)


def test_an_unknown_change_of_the_logits_is_found_by_trying():
    model = tiny_model("llama")
    assert own_logits_reason(model, device=CPU) is None
    model.lm_head.register_forward_hook(lambda module, inputs, output: output)
    forward = model.forward

    def scaled(*args, **kwargs):
        result = forward(*args, **kwargs)
        result.logits = result.logits * 1.5
        return result

    model.forward = scaled
    reason = own_logits_reason(model, device=CPU)
    assert reason is not None
    assert "differ" in reason


def test_dropout_is_off_whatever_the_config_says():
    model = tiny_model("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    model.train()
    assert_scores_are_naive(scorer_of(model), temperature=1.0, sharing=False)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_gradient_checkpointing_recomputes_and_changes_no_gradient(family):
    settings = {"resid_pdrop": 0.5, "attn_pdrop": 0.5} if family == "gpt2" else {}
    part = parts_of(ragged_samples(), sharing=True)[0]
    gradients, calls = [], []
    for is_on in (False, True):
        model = tiny_model(family, **settings)
        scorer = scorer_of(model, gradient_checkpointing=is_on)
        count = [0]
        layer = next(m for m in model.modules() if type(m).__name__.endswith("MLP"))
        layer.register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        scorer.scores(part).logprobs.sum().backward()
        gradients.append([p.grad for p in model.parameters()])
        calls.append(count[0])
    assert calls == [1, 2]
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_dropout_of_a_recomputed_layer_is_off_too():
    torch.manual_seed(0)
    model = OPTForCausalLM(
        OPTConfig(
            vocab_size=40,
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            dropout=0.5,
        )
    )
    scorer = scorer_of(model, gradient_checkpointing=True)
    assert any(module.training for module in model.modules())
    assert_scores_are_naive(scorer, temperature=1.0, sharing=False)


def test_bfloat16_runs_under_autocast_over_float32_weights():
    model = tiny_model().to(torch.bfloat16)
    scorer = scorer_of(model, dtype="bfloat16")
    assert all(p.dtype == torch.float32 for p in model.parameters())
    part = parts_of(ragged_samples(), sharing=True)[0]
    low = scorer.scores(part)
    assert low.logprobs.dtype == torch.float32
    full = scorer_of(tiny_model()).scores(part)
    torch.testing.assert_close(low.logprobs, full.logprobs, rtol=0.1, atol=0.3)
    assert not torch.equal(low.logprobs, full.logprobs)
    low.logprobs.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_float16_is_refused():
    with pytest.raises(UnsupportedError, match="loss scaling"):
        scorer_of(tiny_model(), dtype="float16")


def test_eager_attention_takes_shared_rows():
    scorer = scorer_of(tiny_model("qwen3", attn_implementation="eager"))
    assert_scores_are_naive(scorer, temperature=1.0, sharing=True)
