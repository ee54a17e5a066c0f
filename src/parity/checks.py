"""One-line checks for config dataclasses: found, allowed, what to do, with the full key.

A dataclass knows only its own field names; `config/resolve.py` puts the section in front.
"""

import math
from collections.abc import Sequence

from parity.errors import ConfigError


def is_finite(key: str, value: float) -> None:
    """Refuse NaN and infinities, which would switch a threshold off in silence."""
    if not math.isfinite(value):
        raise ConfigError(f"{key} is {value}; it must be a finite number.")


def at_least(key: str, value: float, least: float) -> None:
    """Refuse a value below `least` (or not finite)."""
    is_finite(key, value)
    if value < least:
        raise ConfigError(f"{key} is {value}; it must be >= {least}. Set {key}={least} or more.")


def above(key: str, value: float, bound: float) -> None:
    """Refuse a value that isn't greater than `bound` (or not finite)."""
    is_finite(key, value)
    if value <= bound:
        raise ConfigError(f"{key} is {value}; it must be > {bound}.")


def within(key: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside [low, high] (or not finite)."""
    is_finite(key, value)
    if not low <= value <= high:
        raise ConfigError(f"{key} is {value}; it must lie between {low} and {high}.")


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a word that isn't in `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}; it must be one of {', '.join(allowed)}.")
