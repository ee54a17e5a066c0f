"""Samples on their way to the ranks come out as they went in."""

import math
import pickle

from hypothesis import given
from hypothesis import strategies as st

from parity.runtime.packed import pack, unpack
from parity.types import Sample

NUMBERS = st.floats(allow_nan=False)


@st.composite
def samples(draw) -> Sample:
    length = draw(st.integers(0, 6))

    def column(values):
        return tuple(draw(st.lists(values, min_size=length, max_size=length)))

    return Sample(
        group=draw(st.integers(0, 2**40)),
        tokens=column(st.integers(0, 2**31)),
        loss_mask=column(st.booleans()),
        logprobs=column(NUMBERS),
        versions=column(st.integers(-1, 2**40)),
        advantages=column(NUMBERS),
    )


@given(st.lists(samples(), max_size=5))
def test_nothing_is_rounded_or_lost(batch: list[Sample]):
    again = unpack(pickle.loads(pickle.dumps(pack(batch))))
    assert again == batch
    assert all(type(mask) is bool for sample in again for mask in sample.loss_mask)
    assert [math.copysign(1, x) for s in again for x in s.logprobs] == [
        math.copysign(1, x) for s in batch for x in s.logprobs
    ]
