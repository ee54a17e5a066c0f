"""Arranges the live slots by length, so that short requests don't pay for a long neighbour.

Used by the scheduler before every token. Attention runs once per span over the longest
request in it. Requests are sorted into coarse classes of length rather than exactly, so that
one changes its place only when it has grown by a third or more; neighbouring classes share a
span where another pass would cost more than it saves.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parity.engines.embedded.decoders.decoder import Span

Ints = npt.NDArray[np.int64]

_ROUNDING = 16
_PASS_COST = 2048  # cached tokens that could be read in the time one more pass takes
_EDGES = np.array([64 << n for n in range(20)], np.int64)  # longest request of each class


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Spans, and which slots have to change places first (all at once) for them to hold."""

    spans: list[Span]
    sources: Ints
    targets: Ints


def arrange(lengths: Ints, *, room: int, may_move: bool) -> Arrangement:
    """Spans over slots 0 to len(lengths) - 1, each long enough for one more token.

    Args:
        lengths: tokens each slot holds.
        room: tokens a slot of the cache can hold.
        may_move: False asks for a single span, which needs no order.
    """
    needed = lengths + 1
    longest = int(needed.max())
    classes = length_classes(needed)
    if not may_move or int(classes.max()) == int(classes.min()):
        none = np.zeros(0, np.int64)
        return Arrangement([Span(0, len(needed), _rounded(longest, room))], none, none)
    spans, span_of_class = _merge_classes(needed, classes, room=room)
    wanted = np.repeat(np.arange(len(spans)), [span.stop - span.start for span in spans])
    current = span_of_class[classes]
    misplaced = np.flatnonzero(current != wanted)
    sources = misplaced[np.argsort(current[misplaced], kind="stable")]
    return Arrangement(spans, sources, misplaced)


def length_classes(lengths: Ints) -> Ints:
    """The coarse class of each length: short, or within a factor of two of each other."""
    return np.searchsorted(_EDGES, lengths)


def _merge_classes(needed: Ints, classes: Ints, *, room: int) -> tuple[list[Span], Ints]:
    """Spans from the longest requests to the shortest, and the span of each class."""
    span_of_class = np.zeros(len(_EDGES) + 1, np.int64)
    spans: list[Span] = []
    start = 0
    for kind in sorted(set(classes.tolist()), reverse=True):
        members = needed[classes == kind]
        length, stop = _rounded(int(members.max()), room), start + len(members)
        if spans and len(members) * (spans[-1].length - length) < _PASS_COST:
            spans[-1] = Span(spans[-1].start, stop, spans[-1].length)
        else:
            spans.append(Span(start, stop, length))
        span_of_class[kind] = len(spans) - 1
        start = stop
    return spans, span_of_class


def _rounded(length: int, room: int) -> int:
    return min(length + -length % _ROUNDING, room)
