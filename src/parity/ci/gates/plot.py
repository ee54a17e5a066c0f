"""A series with its band and bounds as a few lines of plain text, for logs and terminals."""

import math
import sys
from collections.abc import Sequence

HEIGHT = 9
_MOST = sys.float_info.max / 4  # larger ones lie at the edge: differences must stay finite
_LABEL_WIDTH = 10
TRUSTED, UNTRUSTED, CURRENT, EDGE, BOUND = "o", "x", "#", "-", "="


def plot(
    history: Sequence[tuple[float, bool]],
    current: float | None,
    *,
    band: tuple[float | None, float | None],
    bounds: tuple[float | None, float | None],
    width: int = 64,
) -> list[str]:
    """The lines, oldest value on the left, the current one last.

    Args:
        history: values and whether they are trusted; only the newest that fit are drawn.
        current: drawn at the edge of the picture where it isn't finite or lies far outside.
        band: drawn as dashes; None: there is none.
        bounds: the hard ones; drawn as a double line where they lie within the picture.
    """
    shown = list(history)[-(width - 1) :]
    known = [value for value, _ in shown] + [edge for edge in band if edge is not None]
    is_drawn = current is not None and math.isfinite(current)
    known += [current] if is_drawn and current is not None else []
    if not known:
        return []
    low, high = _scale(known)
    rows = [[" "] * (len(shown) + 2) for _ in range(HEIGHT)]
    lines = [(EDGE, edge) for edge in band] + [(BOUND, bound) for bound in bounds]
    for mark, value in lines:
        if value is not None and low <= value <= high:
            rows[_row(value, low, high)] = [mark] * (len(shown) + 2)
    for column, (value, is_trusted) in enumerate(shown):
        rows[_row(value, low, high)][column] = TRUSTED if is_trusted else UNTRUSTED
    if is_drawn and current is not None:
        rows[_row(current, low, high)][-1] = CURRENT
    labels = {0: f"{high:.4g}", HEIGHT - 1: f"{low:.4g}"}
    drawn = [
        f"{labels.get(index, ''):>{_LABEL_WIDTH}} |{''.join(row)}" for index, row in enumerate(rows)
    ]
    legend = "o trusted  x untrusted  # this value  - band  = hard bound"
    return [*(line.rstrip() for line in drawn), f"{'':>{_LABEL_WIDTH}}  {legend}"]


def _scale(values: Sequence[float]) -> tuple[float, float]:
    low, high = max(min(values), -_MOST), min(max(values), _MOST)
    if high - low <= 1e-12 * max(1.0, abs(high)):
        spread = abs(high) * 0.1 or 1.0
        return low - spread, high + spread
    return low, high


def _row(value: float, low: float, high: float) -> int:
    share = (min(max(value, low), high) - low) / (high - low)
    return round((1.0 - min(1.0, max(0.0, share))) * (HEIGHT - 1))
