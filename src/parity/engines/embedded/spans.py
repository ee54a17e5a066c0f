"""Splits the live slots into spans, so that short requests don't pay for a long neighbour.

Used by the scheduler before every token.
"""

import numpy as np
import numpy.typing as npt

from parity.engines.embedded.decoders.decoder import Span

_ROUNDING = 16


def plan_spans(lengths: npt.NDArray[np.int64], *, room: int) -> list[Span]:
    """Spans over slots 0 to len(lengths) - 1, each long enough for one more token.

    Args:
        lengths: tokens each slot holds.
        room: tokens a slot of the cache can hold.
    """
    longest = int(lengths.max()) + 1
    return [Span(0, len(lengths), min(longest + -longest % _ROUNDING, room))]
