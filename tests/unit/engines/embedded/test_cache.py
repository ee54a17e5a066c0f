"""Slots keep what they hold while the cache grows and while they are copied."""

import pytest
import torch

from parity.engines.embedded.cache import LayerShape, SlotCache


def cache(*, keys_transposed: bool) -> SlotCache:
    return SlotCache(
        [LayerShape(2, 3, 4), LayerShape(1, 5, 5)],
        keys_transposed=keys_transposed,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def written(found: SlotCache) -> list[torch.Tensor]:
    """Fill the whole cache with different numbers; keys and values as [slots, heads, L, dim]."""
    for number, tensor in enumerate((*found.keys, *found.values)):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 1000.0 * number)
    return [tensor.clone() for tensor in natural(found)]


def natural(found: SlotCache) -> list[torch.Tensor]:
    keys = [key.transpose(2, 3) if found.keys_transposed else key for key in found.keys]
    return [*keys, *found.values]


@pytest.mark.parametrize("keys_transposed", [False, True])
def test_growing_keeps_what_was_written_and_zeroes_the_rest(*, keys_transposed: bool) -> None:
    found = cache(keys_transposed=keys_transposed)
    found.reserve(slots=2, length=16, planned_length=16)
    before = written(found)
    found.reserve(slots=3, length=17, planned_length=40)
    assert found.num_slots == 3
    assert found.length == 48  # twice what was needed, within the plan, rounded up
    for old, new in zip(before, natural(found), strict=True):
        assert torch.equal(new[:2, :, :16], old)
        assert new[2:].abs().sum() == new[:, :, 16:].abs().sum() == 0


def test_nothing_is_reallocated_while_there_is_room() -> None:
    found = cache(keys_transposed=True)
    assert found.size_bytes == 0
    found.reserve(slots=4, length=30, planned_length=1000)
    size, keys = found.size_bytes, found.keys[0]
    assert found.length == 64
    found.reserve(slots=3, length=64, planned_length=1000)
    assert found.keys[0] is keys
    assert found.size_bytes == size == 4 * 64 * (2 * (3 + 4) + 5 + 5) * 4


def test_rows_do_not_fall_on_one_cache_set() -> None:
    found = cache(keys_transposed=True)
    found.reserve(slots=1, length=512, planned_length=512)
    assert found.length == 528


@pytest.mark.parametrize("keys_transposed", [False, True])
def test_copies_happen_all_at_once(*, keys_transposed: bool) -> None:
    found = cache(keys_transposed=keys_transposed)
    found.reserve(slots=4, length=16, planned_length=16)
    before = written(found)
    found.copy([0, 1, 1], [1, 0, 3], length=7)
    for old, new in zip(before, natural(found), strict=True):
        for source, target in ((0, 1), (1, 0), (1, 3)):
            assert torch.equal(new[target, :, :7], old[source, :, :7])
            assert torch.equal(new[target, :, 7:], old[target, :, 7:])
        assert torch.equal(new[2], old[2])
    found.copy([], [], length=7)
    found.copy([0], [1], length=0)
