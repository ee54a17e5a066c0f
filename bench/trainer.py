"""How fast `Trainer.step` is against a bare PyTorch loop, and what prefix sharing saves.

    python bench/trainer.py [--quick] [--json] [--threads 2]

Model: Qwen3 shape of 1.65 M parameters, float32. First part: ragged samples through
`Trainer.step` (no shared prompts) against forward, cross-entropy, backward and AdamW on the
same number of tokens in equal rows without padding; the bare loop may take them in one
pass or in several, whichever is faster. Second part: groups of 8 siblings behind one
prompt, prefix sharing on against off. Repeats are interleaved, the best one counts.
Exit status 1 where the first ratio is below 0.9.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from parity.algorithms.config import CorrectionConfig, EntropyConfig, KlConfig, PpoClipLossConfig
from parity.algorithms.losses.ppo_clip import ppo_clip
from parity.algorithms.objective import PolicyObjective
from parity.training.config import AdamWConfig, PrefixSharing, ScheduleConfig, TrainerConfig
from parity.training.trainer import Trainer
from parity.types import Sample

VOCABULARY = 128
REQUIRED_RATIO = 0.9
BARE_PASS_TOKENS = (4096, 16384)


def tiny_qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def trainer(prefix_sharing: PrefixSharing) -> Trainer:
    return Trainer(
        tiny_qwen3(),
        objective=PolicyObjective(
            policy_loss=ppo_clip,
            loss=PpoClipLossConfig(),
            kl=KlConfig(),
            entropy=EntropyConfig(),
            correction=CorrectionConfig(level="off"),
        ),
        optimizer=AdamWConfig(lr=1e-5),
        schedule=ScheduleConfig(),
        config=TrainerConfig(prefix_sharing=prefix_sharing),
        total_steps=1000,
        temperature=1.0,
        device=torch.device("cpu"),
    )


def sample(
    generator: random.Random, prompt: tuple[int, ...], num_response: int, group: int
) -> Sample:
    tokens = (*prompt, *(generator.randrange(VOCABULARY) for _ in range(num_response)))
    return Sample(
        group=group,
        tokens=tokens,
        loss_mask=(False,) * len(prompt) + (True,) * num_response,
        logprobs=(-4.8,) * len(tokens),
        versions=(0,) * len(tokens),
        advantages=(generator.choice((-1.0, 1.0)),) * len(tokens),
    )


def ragged_samples(count: int) -> list[Sample]:
    """Lengths of 16 to 112 tokens, 64 on average; a quarter of each is prompt."""
    generator = random.Random(0)
    samples: list[Sample] = []
    for group in range(count // 2):
        half = generator.randint(16, 64)
        for length in (half, 128 - half):
            prompt = tuple(generator.randrange(VOCABULARY) for _ in range(length // 4))
            samples.append(sample(generator, prompt, length - len(prompt), group))
    return samples


def grouped_samples(num_groups: int) -> list[Sample]:
    """Groups of 8: prompts of 32 to 64 tokens, answers of 4 to 12."""
    generator = random.Random(1)
    samples: list[Sample] = []
    for group in range(num_groups):
        prompt = tuple(generator.randrange(VOCABULARY) for _ in range(generator.randint(32, 64)))
        samples += [sample(generator, prompt, generator.randint(4, 12), group) for _ in range(8)]
    return samples


def bare_step(num_tokens: int, pass_tokens: int) -> Callable[[], None]:
    """Equal rows of 64 tokens, without packing, checks, metrics or clipping."""
    model = tiny_qwen3()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    rows = torch.randint(VOCABULARY, (num_tokens // 64, 64))

    def step() -> None:
        for part in rows.split(max(1, pass_tokens // 64)):
            logits = model(input_ids=part, use_cache=False).logits[:, :-1]
            loss = functional.cross_entropy(
                logits.reshape(-1, VOCABULARY), part[:, 1:].reshape(-1), reduction="sum"
            )
            (loss / num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def best_seconds(steps: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The best time of each, after one unmeasured step, in turns."""
    for step in steps.values():
        step()
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(repeats):
        for name, step in steps.items():
            begin_s = time.perf_counter()
            step()
            best[name] = min(best[name], time.perf_counter() - begin_s)
    return best


def measure(*, num_samples: int, repeats: int) -> dict[str, float]:
    ragged, grouped = ragged_samples(num_samples), grouped_samples(num_samples // 8)
    num_ragged = sum(len(one.tokens) for one in ragged)
    num_grouped = sum(len(one.tokens) for one in grouped)
    plain, off, on = trainer("off"), trainer("off"), trainer("auto")
    steps: dict[str, Callable[[], object]] = {
        "trainer": lambda: plain.step(ragged),
        "off": lambda: off.step(grouped),
        "on": lambda: on.step(grouped),
    }
    for tokens in BARE_PASS_TOKENS:
        steps[f"bare {tokens}"] = bare_step(num_ragged, tokens)
    seconds = best_seconds(steps, repeats)
    bare_s = min(seconds[f"bare {tokens}"] for tokens in BARE_PASS_TOKENS)
    return {
        "trainer_tokens_per_s": num_ragged / seconds["trainer"],
        "bare_tokens_per_s": num_ragged / bare_s,
        "trainer_over_bare": bare_s / seconds["trainer"],
        "trainer_padding_share": plain.step(ragged).metrics["train/padding_share"],
        "sharing_off_tokens_per_s": num_grouped / seconds["off"],
        "sharing_on_tokens_per_s": num_grouped / seconds["on"],
        "sharing_speedup": seconds["off"] / seconds["on"],
        "sharing_saved_share": on.step(grouped).metrics["train/prefix_shared_share"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="a quarter of the samples")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--repeats", type=int, default=3, help="measured steps of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    num_samples = 64 if arguments.quick else 256
    results = measure(num_samples=num_samples, repeats=arguments.repeats)
    if arguments.json:
        print(json.dumps(results))
    else:
        for name, value in results.items():
            print(f"{name:28}{value:12,.2f}" if value < 100 else f"{name:28}{value:12,.0f}")
    return 0 if results["trainer_over_bare"] >= REQUIRED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
