"""Tiny models of several families, saved as ordinary folders: what streamed loading is held to."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {
    "vocab_size": 50,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SCALED = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
SCALED |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama with scaled positions": ("llama", {"rope_parameters": SCALED}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True}),
    "gpt2": ("gpt2", GPT2),
    "gpt_neox": ("gpt_neox", {}),
    "gemma": ("gemma", {}),
    "gemma3": ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}),
    "phi3": ("phi3", {}),
    "opt": ("opt", {"word_embed_proj_dim": 32, "ffn_dim": 48}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
}


def save_family(
    name: str,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    shard_size: str = "20KB",
    **changes: object,
) -> None:
    """Write a model of random weights, in several files where `shard_size` asks for it."""
    kind, settings = FAMILIES[name]
    shape = settings if kind == "gpt2" else {**SIZES, **settings}
    torch.manual_seed(len(name))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**shape, **changes}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard_size)
