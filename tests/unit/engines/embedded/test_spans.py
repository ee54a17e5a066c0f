"""Spans cover every slot with enough length, and order is made only where it pays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.embedded.spans import arrange


@given(
    lengths=st.lists(
        st.one_of(st.integers(0, 200), st.integers(1000, 4000)), min_size=1, max_size=60
    )
)
@settings(max_examples=50, deadline=None)
def test_after_the_moves_every_slot_fits_its_span(lengths: list[int]) -> None:
    room = 4016
    found = arrange(np.array(lengths), room=room, may_move=True)
    moved = np.array(lengths)
    moved[found.targets] = moved[found.sources]
    assert sorted(moved.tolist()) == sorted(lengths)
    assert sorted(found.sources.tolist()) == sorted(found.targets.tolist())
    assert found.spans[0].start == 0
    assert found.spans[-1].stop == len(lengths)
    for before, after in zip(found.spans, found.spans[1:], strict=False):
        assert before.stop == after.start
        assert before.length > after.length
    for span in found.spans:
        assert (moved[span.start : span.stop] + 1 <= span.length).all()
        assert span.length <= room
    again = arrange(moved, room=room, may_move=True)
    assert len(again.sources) == 0
    assert again.spans == found.spans


def test_requests_of_similar_length_share_one_span() -> None:
    found = arrange(np.array([17, 120, 90, 3]), room=200, may_move=True)
    assert [(span.start, span.stop, span.length) for span in found.spans] == [(0, 4, 128)]


def test_one_long_request_is_kept_apart_from_many_short_ones() -> None:
    lengths = np.array([50] * 30 + [900] + [40] * 30)
    found = arrange(lengths, room=1000, may_move=True)
    assert [(span.start, span.stop, span.length) for span in found.spans] == [
        (0, 1, 912),
        (1, 61, 64),
    ]
    pairs = zip(found.sources.tolist(), found.targets.tolist(), strict=True)
    assert sorted(pairs) == [(0, 30), (30, 0)]


def test_without_moves_there_is_one_span_bounded_by_the_cache() -> None:
    found = arrange(np.array([50, 900, 40]), room=901, may_move=False)
    assert [(span.start, span.stop, span.length) for span in found.spans] == [(0, 3, 901)]
    assert len(found.sources) == len(found.targets) == 0
