"""A gate as it is judged: the band and the bound of one metric, complete and checked.

Made from a registration and the defaults of its metric in [gates] of ci.toml:

```toml
[gates]
history_limit = 20     # how many trusted values make the reference (their median)
min_history = 3        # fewer than these: a new series, of which only the hard bound is judged
[gates.defaults."train/grad_norm"]
rel_up = 0.5
abs_up = 0.1
rel_down = 0.8
abs_down = 0.1
```
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from parity.ci.model import GateMode, GateRegistration, Steps
from parity.ci.toml import Table
from parity.errors import ConfigError

_SIDES = ("rel_up", "abs_up", "rel_down", "abs_down")


@dataclass(frozen=True, slots=True)
class Band:
    """How far a value may lie from the reference, on each side the wider of the two widths."""

    rel_up: float = 0.0
    abs_up: float = 0.0
    rel_down: float = 0.0
    abs_down: float = 0.0

    def around(self, reference: float) -> tuple[float, float]:
        """The lowest and the highest value that pass."""
        size = abs(reference)
        low = reference - max(self.rel_down * size, self.abs_down)
        high = reference + max(self.rel_up * size, self.abs_up)
        return max(low, -sys.float_info.max), min(high, sys.float_info.max)


@dataclass(frozen=True, slots=True)
class Gate:
    """One metric of one test file."""

    metric_key: str
    steps: Steps
    band: Band | None  # None: only the hard bound is judged
    hard_min: float | None
    hard_max: float | None
    mode: GateMode
    where: str  # file and line of the registration, for messages


@dataclass(frozen=True, slots=True)
class GateSettings:
    """[gates] of ci.toml."""

    history_limit: int = 20
    min_history: int = 3
    defaults: Mapping[str, Mapping[str, float]] = field(
        default_factory=dict[str, Mapping[str, float]]
    )

    @classmethod
    def of(cls, table: Table) -> "GateSettings":
        """Read the section strictly; raises ConfigError with file and line."""
        limit = table.integer("history_limit", cls().history_limit, least=1)
        least = table.integer("min_history", cls().min_history, least=1)
        if least > limit:
            raise table.error("min_history", f"is {least}, more than history_limit, {limit}.")
        defaults: dict[str, Mapping[str, float]] = {}
        for metric, inner in table.tables("defaults").items():
            defaults[metric] = {side: inner.number(side) for side in _SIDES if inner.has(side)}
            inner.done()
        table.done()
        return cls(limit, least, defaults)

    def gate(self, registration: GateRegistration) -> Gate:
        """The registration with the defaults of its metric.

        Raises ConfigError where a side of the band has no width, or nothing at all is judged.
        """
        own = {
            "rel_up": registration.rel_up,
            "abs_up": registration.abs_up,
            "rel_down": registration.rel_down,
            "abs_down": registration.abs_down,
        }
        defaults = self.defaults.get(registration.metric_key, {})
        known: dict[str, float] = {}
        for first, second in (("rel_up", "abs_up"), ("rel_down", "abs_down")):
            source = own if own[first] is not None or own[second] is not None else defaults
            known |= {k: v for k in (first, second) if (v := source.get(k)) is not None}
        where = f"{registration.path}:{registration.line}"
        has_bound = registration.hard_min is not None or registration.hard_max is not None
        sides = [any(k in known for k in pair) for pair in (_SIDES[:2], _SIDES[2:])]
        if any(sides) != all(sides) or not (any(sides) or has_bound):
            what = "only one side of its band" if any(sides) else "neither a band nor a hard bound"
            raise ConfigError(
                f"{where}: the gate on {registration.metric_key!r} has {what}; give rel_up or"
                " abs_up, and rel_down or abs_down, or hard_min or hard_max alone, or defaults in"
                f' [gates.defaults."{registration.metric_key}"] of ci.toml.'
            )
        return Gate(
            metric_key=registration.metric_key,
            steps=registration.steps,
            band=Band(**known) if any(sides) else None,
            hard_min=registration.hard_min,
            hard_max=registration.hard_max,
            mode=registration.mode,
            where=where,
        )
