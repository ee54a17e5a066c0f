"""Prompts are batched within the limit, and a held prompt is known by slot and content."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.embedded.prompts import ResidentPrompts, plan_batches


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30), limit=st.integers(1, 120))
@settings(max_examples=50, deadline=None)
def test_batches_hold_every_prompt_once_within_the_limit(lengths: list[int], limit: int) -> None:
    batches = plan_batches([(0,) * length for length in lengths], limit=limit)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= limit or len(batch) == 1


def logits(value: float) -> torch.Tensor:
    return torch.tensor([value])


def test_the_lowest_slot_that_holds_a_prompt_is_found() -> None:
    held = ResidentPrompts()
    assert held.find((1, 2)) is None
    held.put(5, (1, 2), logits(1.0))
    held.put(3, (1, 2), logits(1.0))
    found = held.find((1, 2))
    assert found is not None
    assert found[0] == 3
    held.drop(3)
    found = held.find((1, 2))
    assert found is not None
    assert found[0] == 5
    held.put(5, (7,), logits(2.0))
    assert held.find((1, 2)) is None
    held.clear()
    assert held.find((7,)) is None


def test_moves_happen_all_at_once() -> None:
    held = ResidentPrompts()
    held.put(0, (1,), logits(1.0))
    held.put(1, (2,), logits(2.0))
    held.move([0, 1, 4], [1, 0, 2])
    first, second = held.find((1,)), held.find((2,))
    assert first is not None
    assert second is not None
    assert (first[0], second[0]) == (1, 0)
    assert first[1].item() == pytest.approx(1.0)
    held.put(2, (3,), logits(3.0))
    held.move([4], [2])  # what moves in isn't a known prompt
    assert held.find((3,)) is None
