"""Prefills prompts: which ones share a forward pass, and which slots hold a prompt already.

Used by the scheduler and, for the same code path, by `probe.py`. A prompt that some slot
still holds under the current weights needs no forward pass: its keys and values are copied.
"""

from collections.abc import Sequence

import torch

from parity.engines.embedded.cache import SlotCache
from parity.engines.embedded.decoders.decoder import Decoder

Prompt = tuple[int, ...]


def plan_batches(prompts: Sequence[Prompt], *, limit: int) -> list[list[int]]:
    """Indices of prompts in batches of at most `limit` tokens, padding included.

    Shorter prompts come first, so that little is padded; a batch has at least one prompt.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(prompts)), key=lambda index: len(prompts[index])):
        if batches and len(prompts[index]) * (len(batches[-1]) + 1) <= limit:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def prefill(
    decoder: Decoder,
    cache: SlotCache,
    prompts: Sequence[Prompt],
    slots: Sequence[int],
    *,
    limit: int,
) -> torch.Tensor:
    """Write prompts into slots; the logits [M, V] after each prompt's last token.

    Args:
        decoder: computes.
        cache: has room for the longest prompt in each slot.
        prompts: M prompts; together, padded, at most `limit` tokens unless there is only one.
        slots: M different slots.
        limit: tokens of one forward pass; a longer single prompt is taken in parts.
    """
    longest = max(len(prompt) for prompt in prompts)
    padded = torch.tensor([prompt + (0,) * (longest - len(prompt)) for prompt in prompts])
    padded = padded.to(decoder.device)
    last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=decoder.device)
    target = torch.tensor(slots, device=decoder.device)
    part = longest if len(prompts) > 1 else min(limit, longest)
    start = 0
    while True:
        tokens = padded[:, start : start + part]
        position = last - start if start + part >= longest else last.new_zeros(len(prompts))
        logits = decoder.prefill(cache, tokens=tokens, slots=target, start=start, last=position)
        start += part
        if start >= longest:
            return logits


class ResidentPrompts:
    """Which slots hold the keys and values of which whole prompt, live or left behind.

    The logits after each such prompt are kept beside it, so that a request which starts from
    a copy samples its first token from exactly what a prefill gave.
    """

    def __init__(self) -> None:
        self._slots: dict[Prompt, set[int]] = {}
        self._logits: dict[Prompt, torch.Tensor] = {}
        self._prompts: dict[int, Prompt] = {}

    def find(self, prompt: Prompt) -> tuple[int, torch.Tensor] | None:
        """The lowest slot that holds `prompt`, and the logits [V] after it."""
        slots = self._slots.get(prompt)
        return (min(slots), self._logits[prompt]) if slots else None

    def put(self, slot: int, prompt: Prompt, logits: torch.Tensor) -> None:
        """`slot` holds `prompt` now, and nothing else."""
        self.drop(slot)
        self._prompts[slot] = prompt
        self._slots.setdefault(prompt, set()).add(slot)
        self._logits[prompt] = logits

    def drop(self, slot: int) -> None:
        """`slot` was or will be overwritten."""
        prompt = self._prompts.pop(slot, None)
        if prompt is None:
            return
        slots = self._slots[prompt]
        slots.discard(slot)
        if not slots:
            del self._slots[prompt], self._logits[prompt]

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Each target holds what its source held, all at once."""
        held = [self._prompts.get(source) for source in sources]
        logits = [None if prompt is None else self._logits[prompt] for prompt in held]
        for target, prompt, row in zip(targets, held, logits, strict=True):
            if prompt is None or row is None:
                self.drop(target)
            else:
                self.put(target, prompt, row)

    def clear(self) -> None:
        """Nothing is held: the weights changed."""
        self._slots.clear()
        self._logits.clear()
        self._prompts.clear()
