"""Tiny models, samples and a naive scorer that the trainer's tests compare with."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from parity.algorithms.config import (
    CorrectionConfig,
    EntropyConfig,
    KlConfig,
    PpoClipLossConfig,
)
from parity.algorithms.losses.ppo_clip import ppo_clip
from parity.algorithms.objective import Objective, PolicyObjective
from parity.models.streaming import WeightStream
from parity.training.config import AdamWConfig, ScheduleConfig, TrainerConfig
from parity.training.layout import ModelCost
from parity.training.parallel.ranks import Ranks
from parity.training.trainer import Trainer
from parity.types import Sample

VOCABULARY = 40
CPU = torch.device("cpu")
BRANCHES = 3  # tokens that answers are made of, so that siblings often begin alike
FREE_ATTENTION = ModelCost(token_flops=1.0, pair_flops=0.0)


def tiny_model(family: str = "qwen3", *, seed: int = 0, **settings: object) -> PreTrainedModel:
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "head_dim": 8,
        "initializer_range": 0.2,  # so that attention matters and logits spread
    }
    torch.manual_seed(seed)
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**{**shape, "tie_word_embeddings": True, **settings}))
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape, **settings))
    if family == "gemma2":
        return Gemma2ForCausalLM(Gemma2Config(**shape, **settings))
    assert family == "gpt2"
    gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, **settings}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, initializer_range=0.2, **gpt2))


def sample(
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    group: int = 0,
    advantage: float = 1.0,
    mask: Sequence[bool] | None = None,
    logprob: float = -3.0,
) -> Sample:
    length = len(prompt) + len(response)
    trained = [True] * len(response) if mask is None else list(mask)
    return Sample(
        group=group,
        tokens=(*prompt, *response),
        loss_mask=(False,) * len(prompt) + tuple(trained),
        logprobs=(0.0,) * len(prompt) + (logprob,) * len(response),
        versions=(0,) * length,
        advantages=(advantage,) * length,
    )


def ragged_samples(
    *, num_groups: int = 3, group_size: int = 4, seed: int = 0, has_holes: bool = False
) -> list[Sample]:
    generator = random.Random(seed)
    samples: list[Sample] = []
    for group in range(num_groups):
        prompt = [generator.randrange(VOCABULARY) for _ in range(generator.randint(2, 14))]
        for _ in range(group_size):
            response = [generator.randrange(BRANCHES) for _ in range(generator.randint(1, 7))]
            mask = [generator.random() < 0.6 for _ in response] if has_holes else None
            samples.append(
                sample(
                    prompt,
                    response,
                    group=group,
                    advantage=generator.gauss(0.0, 1.0),
                    mask=mask,
                    logprob=-generator.uniform(1.0, 5.0),
                )
            )
    return samples


def policy_objective(
    *,
    kl: float = 0.0,
    entropy: float = 0.0,
    correction: str = "off",
    aggregation: str = "token_mean",
) -> PolicyObjective:
    return PolicyObjective(
        policy_loss=ppo_clip,
        loss=PpoClipLossConfig(aggregation=aggregation, old_logprobs="trainer"),
        kl=KlConfig(coefficient=kl),
        entropy=EntropyConfig(coefficient=entropy),
        correction=CorrectionConfig(level=correction),
    )


def tiny_trainer(  # noqa: PLR0913 (each one is an argument of Trainer)
    model: PreTrainedModel | None = None,
    *,
    objective: Objective | None = None,
    optimizer: AdamWConfig | None = None,
    schedule: ScheduleConfig | None = None,
    config: TrainerConfig | None = None,
    total_steps: int = 10,
    temperature: float = 1.0,
    ranks: Ranks | None = None,
    rest_dir: Path | None = None,
    stream: WeightStream | None = None,
) -> Trainer:
    return Trainer(
        model or tiny_model(),
        objective=objective or policy_objective(),
        optimizer=optimizer or AdamWConfig(lr=1e-3),
        schedule=schedule or ScheduleConfig(),
        config=config or TrainerConfig(),
        total_steps=total_steps,
        temperature=temperature,
        device=CPU,
        ranks=ranks,
        rest_dir=rest_dir,
        stream=stream,
    )


def naive_logprobs(
    model: PreTrainedModel, one: Sample, *, temperature: float, left: int = 0, right: int = 0
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one sample's trained tokens, in a padded row of its own."""
    length = len(one.tokens)
    row = torch.tensor([[0] * left + list(one.tokens) + [0] * right])
    visible = torch.tensor([[0] * left + [1] * length + [0] * right])
    positions = (visible.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=row, attention_mask=visible, position_ids=positions).logits[0]
    everything = (logits.double() / temperature).log_softmax(-1)[left : left + length - 1]
    trained = torch.tensor(one.loss_mask)[1:]
    targets = torch.tensor(one.tokens)[1:]
    logprobs = everything.gather(1, targets[:, None])[:, 0][trained]
    entropy = -(everything.exp() * everything).sum(-1)[trained]
    return logprobs, entropy


def naive_loss(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    *,
    aggregation: str = "token_mean",
    temperature: float = 1.0,
    entropy_coefficient: float = 0.0,
    left: int = 0,
    right: int = 0,
) -> Tensor:
    """On-policy loss: minus the weighted mean of ratio * advantage + coefficient * entropy."""
    trained = [one for one in samples if any(one.loss_mask)]
    num_tokens = sum(sum(one.loss_mask) for one in trained)
    total = torch.zeros((), dtype=torch.float64)
    for one in trained:
        logprobs, entropy = naive_logprobs(
            model, one, temperature=temperature, left=left, right=right
        )
        count = sum(one.loss_mask)
        weight = 1 / num_tokens if aggregation == "token_mean" else 1 / (len(trained) * count)
        ratio = (logprobs - logprobs.detach()).exp()
        total = total - weight * (ratio * one.advantages[0]).sum()
        total = total - weight * entropy_coefficient * entropy.sum()
    return total
