"""What a metric is, and how many values of one become one number.

Used by `names.py` (the table of every metric) and by whoever gathers values over episodes,
micro-batches, ranks or steps. Invariant: unknown (None or NaN) is never counted as a number;
a reduction over nothing known is None ("no data"), not 0.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from parity.errors import ConfigError

Reduction = Literal["mean", "share", "sum", "max", "min", "last"]
_NAME = re.compile(r"[a-z]+(_[a-z]+)*/([a-z0-9]+(_[a-z0-9]+)*(_?\*)?|\*)")


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric.

    `name` is `area/what_unit`; a trailing `*` declares a family (`eval/pass_at_*`). `share`
    reduces like `mean` and lies in [0, 1]; `last` is the newest known value.
    """

    name: str
    unit: str  # "" for a pure number
    reduction: Reduction
    meaning: str

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError(
                f"metric name {self.name!r} isn't `area/what_unit`; use lower-case words joined"
                " by _, one slash, and at most one * at the end."
            )

    @property
    def is_family(self) -> bool:
        """True where the name ends in `*` and stands for many."""
        return self.name.endswith("*")

    def covers(self, name: str) -> bool:
        """True if `name` is this metric or a member of this family."""
        if not self.is_family:
            return name == self.name
        stem = self.name.removesuffix("*")
        return name.startswith(stem) and len(name) > len(stem)


class Accumulator:
    """Gathers values of one metric; not thread-safe."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.num_known = 0
        self.num_unknown = 0
        self._sum = 0.0
        self._weight = 0.0
        self._picked: float | None = None

    def add(self, value: float | None, *, weight: float = 1.0) -> None:
        """Take one value.

        Args:
            value: None or NaN where it is unknown; then only counted as unknown.
            weight: what a mean or share is over (tokens, episodes), >= 0 and finite. A value of
                weight 0 stands for nothing (padding) and is left out.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(
                f"the weight of {self.metric.name} is {weight}; it must be finite and >= 0."
            )
        if value is None or math.isnan(value):
            self.num_unknown += 1
        elif weight > 0:
            self.num_known += 1
            self._weight += weight
            self._sum += value * weight if self.metric.reduction in ("mean", "share") else value
            self._picked = self._pick(value)

    def merge(self, other: "Accumulator") -> None:
        """Take what another accumulator of the same metric gathered after this one."""
        if other.metric != self.metric:
            raise ValueError(f"{other.metric.name} can't be merged into {self.metric.name}.")
        self.num_known += other.num_known
        self.num_unknown += other.num_unknown
        self._sum += other._sum
        self._weight += other._weight
        if other._picked is not None:
            self._picked = self._pick(other._picked)

    @property
    def value(self) -> float | None:
        """The reduced value; None where nothing was known."""
        if self.num_known == 0:
            return None
        if self.metric.reduction in ("mean", "share"):
            return self._sum / self._weight
        return self._sum if self.metric.reduction == "sum" else self._picked

    def _pick(self, value: float) -> float:
        if self._picked is None or self.metric.reduction == "last":
            return value
        if self.metric.reduction == "max":
            return max(self._picked, value)
        return min(self._picked, value)


def reduce(values: Iterable[float | None], metric: Metric) -> float | None:
    """One number for many values of `metric`, each of weight 1; None where none is known."""
    accumulator = Accumulator(metric)
    for value in values:
        accumulator.add(value)
    return accumulator.value
