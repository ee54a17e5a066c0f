"""Ranges, buckets, digests and deltas of any tensor, and control messages of any bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.weights.ends import bits

from parity.errors import TransferError
from parity.weights.content.bucket import ALIGNMENT, plan
from parity.weights.content.delta import decode, encode
from parity.weights.content.digest import digest_of
from parity.weights.content.ranges import copy_from, copy_into, dtype_named
from parity.weights.manifest import Manifest, TensorEntry
from parity.weights.session import wire
from parity.weights.session.canary import Canary

DTYPES = ["float32", "bfloat16", "float16", "float64", "int8", "uint8", "int64", "bool"]


@st.composite
def strided(draw) -> torch.Tensor:
    """A tensor of up to three dimensions with steps and a permutation."""
    shape = draw(st.lists(st.integers(1, 6), min_size=0, max_size=3))
    steps = [draw(st.integers(1, 2)) for _ in shape]
    full = [size * step for size, step in zip(shape, steps, strict=True)]
    tensor = torch.arange(int(np.prod(full)), dtype=torch.float32).view(full)
    for dim, step in enumerate(steps):
        tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    return tensor.permute(draw(st.permutations(range(len(shape)))))


@settings(max_examples=80, deadline=None)
@given(strided(), st.data())
def test_any_range_of_any_layout_is_the_range_of_the_contiguous_copy(tensor, data):
    flat = tensor.contiguous().view(-1).clone()
    start = data.draw(st.integers(0, len(flat)))
    count = data.draw(st.integers(0, len(flat) - start))
    found = torch.empty(count)
    copy_from(tensor, start, found)
    assert torch.equal(found, flat[start : start + count])
    copy_into(tensor, start, found + 0.5)
    expected = flat.clone()
    expected[start : start + count] += 0.5
    assert torch.equal(tensor.contiguous().view(-1), expected)
    assert digest_of(tensor) == digest_of(tensor.contiguous())


entries = st.lists(
    st.tuples(st.lists(st.integers(0, 40), max_size=3), st.sampled_from(DTYPES)), max_size=12
)


@settings(max_examples=80, deadline=None)
@given(entries, st.integers(1, 20))
def test_buckets_hold_every_element_once_in_order_aligned_and_in_bounds(rows, blocks: int):
    made = [TensorEntry(f"t{n}", tuple(shape), dtype) for n, (shape, dtype) in enumerate(rows)]
    size = blocks * ALIGNMENT
    arrived = [0] * len(made)
    order: list[int] = []
    for pieces, filled in plan(made, size):
        assert pieces
        assert 0 < filled <= size
        end = 0
        for piece in pieces:
            assert piece.at % ALIGNMENT == 0
            assert piece.at >= end
            assert piece.start == arrived[piece.tensor]
            end = piece.at + piece.count * dtype_named(made[piece.tensor].dtype).itemsize
            arrived[piece.tensor] += piece.count
            order.append(piece.tensor)
        assert end == filled
    assert arrived == [entry.num_elements for entry in made]
    assert order == sorted(order)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["float32", "bfloat16", "int8", "int64", "complex128", "bool"]),
    st.integers(0, 200),
    st.floats(0, 1),
    st.sampled_from(["xor", "overwrite"]),
    st.integers(0, 2**31),
)
def test_a_delta_gives_back_the_very_bits(dtype: str, count, share, encoding, seed):
    noise = np.random.default_rng(seed)
    kind = dtype_named(dtype)

    def random_bits() -> torch.Tensor:
        high = 2 if kind is torch.bool else 256
        raw = noise.integers(0, high, size=count * kind.itemsize).astype(np.uint8)
        return (
            torch.from_numpy(raw).view(kind) if count else torch.empty(0, dtype=kind)
        )  # NaNs of every kind among them

    old, new = random_bits(), random_bits()
    keep = torch.from_numpy(noise.random(count) >= share)
    new[keep] = old[keep]
    packed = encode(new, old, encoding)
    if bits(new) == bits(old):
        assert packed is None
    else:
        assert bits(decode(packed, old, encoding)) == bits(new)


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_delta_of_another_tensor_or_of_noise_is_refused(encoding):
    old = torch.zeros(100)
    packed = encode(torch.ones(100), old, encoding)
    with pytest.raises(TransferError):
        decode(packed, torch.zeros(10), encoding)
    for broken in (b"", packed[:20], packed[:8] + b"noise", (2**60).to_bytes(8, "little")):
        with pytest.raises(TransferError):
            decode(broken, old, encoding)


def test_a_small_change_makes_a_small_delta():
    old = torch.randn(10000)
    new = old.clone()
    new[::100] += 1
    for encoding in ("xor", "overwrite"):
        assert len(encode(new, old, encoding)) < 4000


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_transfer_error(data: bytes):
    try:
        message = wire.decode(data)
        wire.kind_of(message)
    except TransferError:
        pass


def test_manifests_and_canaries_survive_the_wire():
    manifest = Manifest.of(
        3,
        [
            ("a", torch.empty(2, 0)),
            ("b", torch.tensor(1, dtype=torch.int8)),
            ("x.y", torch.ones(1)),
        ],
        (("c", "a"), ("d", "x.y")),
        skip=("x.*",),
        buffers=("b",),
    )
    assert manifest.skipped == ("x.y", "d")
    assert [entry.is_buffer for entry in manifest.entries] == [False, True]
    packed = wire.decode(wire.encode({"m": wire.pack_manifest(manifest)}))["m"]
    assert wire.unpack_manifest(packed) == manifest
    canary = Canary((1, 2), (0.0, -1.5), 0.1)
    assert wire.unpack_canary(wire.pack_canary(canary)) == canary


@pytest.mark.parametrize(
    "broken",
    [None, {}, {"version": 1}, {"version": "1", "entries": [], "aliases": []}, [1]],
)
def test_a_manifest_that_is_none_is_a_transfer_error(broken):
    with pytest.raises(TransferError):
        wire.unpack_manifest(broken)


def test_a_dtype_that_torch_lacks_is_refused():
    for word in ("float31", "save", "__name__"):
        with pytest.raises(TransferError, match="doesn't have"):
            dtype_named(word)
