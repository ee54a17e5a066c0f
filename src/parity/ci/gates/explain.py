"""A judgement in words and as a picture: value, band, bound, history and verdict.

Used by `parity ci gate --explain`.
"""

import math
from collections.abc import Sequence

from parity.ci.gates.history import Point
from parity.ci.gates.judge import Judgement, Place
from parity.ci.gates.plot import plot

_SHOWN_VALUES = 8


def explain(place: Place, judged: Judgement, recent: Sequence[Point], *, width: int) -> list[str]:
    """The lines about one judgement.

    Args:
        recent: the newest stored values, trusted or not, oldest first.
    """
    values = [point.value for point in judged.history]
    shown = ", ".join(f"{value:.6g}" for value in values[-_SHOWN_VALUES:])
    more = "..., " if len(values) > _SHOWN_VALUES else ""
    history = f"{len(values)} trusted values ({more}{shown})" if values else "no trusted values"
    lines = [
        f"{judged.metric_key} at {judged.at} of {place.test} ({place.backend}, {place.suite})",
        f"  verdict    {judged.verdict.value}, {judged.mode}"
        + (f": {judged.reason}" if judged.reason else ""),
        f"  value      {_number(judged.value)}",
        f"  reference  {_number(judged.reference)} (median of {history})",
        f"  band       {_number(judged.low)} to {_number(judged.high)}",
        f"  hard bound {_number(judged.hard_min)} to {_number(judged.hard_max)}",
    ]
    if len(values) > 1:
        lines.append(f"  drift      {_drift(values)}")
    picture = plot(
        [(point.value, point.is_trusted) for point in recent],
        judged.value,
        band=(judged.low, judged.high),
        bounds=(judged.hard_min, judged.hard_max),
        width=max(16, width - 14),
    )
    return [*lines, *picture]


def _drift(values: Sequence[float]) -> str:
    first, last = values[0], values[-1]
    share = (last / abs(first) - first / abs(first)) if first else math.inf
    change = f" ({share:+.1%})" if math.isfinite(share) else ""
    return f"from {first:.6g} to {last:.6g}{change} over the history, which the band follows"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"
