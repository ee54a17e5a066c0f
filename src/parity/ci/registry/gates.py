"""Checks one `register_ci_gate` call and makes a `GateRegistration` of it.

Used by `reading.py`; what a gate means is in `ci/gates/`. Refused here is what no data could make
right: a bound that isn't finite, a band below zero, limits that cross.
"""

from collections.abc import Collection
from typing import cast

from parity.ci.model import GateMode, GateRegistration, Steps
from parity.ci.registry.arguments import Tell, check_keywords, finite
from parity.ci.registry.calls import Call
from parity.ci.text import shown
from parity.registry import known

BAND = ("rel_up", "abs_up", "rel_down", "abs_down")
HARD = ("hard_min", "hard_max")
KEYWORDS = ("metric_key", "steps", *BAND, *HARD, "mode", "backends")
STEPS = ("last", "all", "mean")
MOST_STEPS = 2**63
MODES = ("shadow", "enforced")


def gate(call: Call, path: str, backends: Collection[str], tell: Tell) -> GateRegistration | None:
    """The gate of a call in a file that is registered on `backends`; None where it's wrong."""
    told: list[int] = []

    def problem(line: int, text: str) -> None:
        told.append(line)
        tell(line, text)

    check_keywords(call, KEYWORDS, problem)
    key = call.values.get("metric_key")
    if not isinstance(key, str) or not key.isprintable() or not key or key != key.strip():
        found = "is missing" if key is None else f"is {shown(key)}"
        problem(call.line_of("metric_key"), f"metric_key {found}; name the recorded metric.")
    numbers = {name: _number(call, name, problem) for name in (*BAND, *HARD)}
    low, high = numbers["hard_min"], numbers["hard_max"]
    if low is not None and high is not None and low > high:
        problem(call.line_of("hard_min"), f"hard_min {low} is above hard_max {high}; swap them.")
    steps = _steps(call, problem)
    mode = call.values.get("mode", "shadow")
    if mode not in MODES:
        problem(call.line_of("mode"), f"mode is {shown(mode)}; {known(shown(mode), MODES)}")
    judged_on = _backends(call, backends, problem)
    if told:
        return None
    return GateRegistration(
        path=path,
        line=call.line,
        metric_key=str(key),
        steps=steps,
        mode=cast("GateMode", mode),
        backends=judged_on,
        **numbers,
    )


def _number(call: Call, name: str, tell: Tell) -> float | None:
    value = call.values.get(name)
    if value is None:
        return None
    number = finite(value)
    if number is None or (name in BAND and number < 0):
        least = " >= 0" if name in BAND else ""
        tell(call.line_of(name), f"{name} is {shown(value)}; it must be a finite number{least}.")
    return number


def _steps(call: Call, tell: Tell) -> Steps:
    value = call.values.get("steps", "last")
    if isinstance(value, list | tuple):
        items = cast("Collection[object]", value)
        numbers = [each for each in items if isinstance(each, int) and not isinstance(each, bool)]
        is_good = numbers and len(numbers) == len(items) == len(set(numbers))
        if is_good and min(numbers) >= 0 and max(numbers) < MOST_STEPS:
            return tuple(numbers)
    elif value in STEPS:
        return cast("Steps", value)
    tell(
        call.line_of("steps"),
        f"steps is {shown(value)}; it must be one of {', '.join(STEPS)} or a list of different step"
        " numbers >= 0.",
    )
    return "last"


def _backends(call: Call, registered: Collection[str], tell: Tell) -> tuple[str, ...] | None:
    value = call.values.get("backends")
    if value is None:
        return None
    line = call.line_of("backends")
    if not isinstance(value, list | tuple) or not value:
        tell(line, f"backends is {shown(value)}; it must be a list of names, or left out for all.")
        return None
    for name in cast("Collection[object]", value):
        if name not in registered:
            tell(
                line,
                f"backends names {shown(name)}, on which this file isn't registered;"
                f" {known(shown(name), registered)}",
            )
    return tuple(name for name in cast("Collection[object]", value) if isinstance(name, str))
