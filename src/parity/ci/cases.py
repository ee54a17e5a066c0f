"""Parallel layouts that a hardware test and its variants share, and how they shrink.

A case table is a file of its own beside the tests, whose `CASES` is a list of `Case(...)` calls
with literal arguments; `registry/` reads it as text. A test file names it by
`register_ci_cases(table="mtp_cases.py")` and takes its cases from `load_cases`.

A world of `devices` ranks is divided twice, independently: the dense grid tp*cp*pp and the
expert grid etp*ep*pp must each divide it. What the dense grid leaves over is dp.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from types import MappingProxyType

from parity.errors import ConfigError
from parity.registry import known

AXES = ("tp", "cp", "pp", "ep", "etp")


@dataclass(frozen=True, slots=True)
class Case:
    """One layout. `at` restates axes for a number of devices: `at={4: {"ep": 2}}`."""

    name: str
    devices: int
    tp: int = 1  # tensor parallel
    cp: int = 1  # context parallel
    pp: int = 1  # pipeline parallel
    ep: int = 1  # expert parallel
    etp: int = 1  # tensor parallel inside an expert
    at: Mapping[int, Mapping[str, int]] = field(
        default_factory=lambda: MappingProxyType[int, Mapping[str, int]]({})
    )

    def __post_init__(self) -> None:
        """Refuse sizes below 1, unknown axes, and grids that don't divide the devices."""
        for axis in ("devices", *AXES):
            if getattr(self, axis) < 1:
                raise ConfigError(f"case {self.name!r} has {axis}={getattr(self, axis)}; >= 1.")
        for devices, axes in self.at.items():
            for axis in axes:
                if axis not in AXES:
                    raise ConfigError(
                        f"case {self.name!r} restates {axis!r} at {devices} devices;"
                        f" {known(axis, AXES)}"
                    )
        _check_grids(self)

    @property
    def dp(self) -> int:
        """Data-parallel size: what the dense grid leaves over."""
        return self.devices // (self.tp * self.cp * self.pp)

    def fit(self, devices: int) -> "Case":
        """The case on at most `devices` devices.

        tp, pp, ep and etp stay; dp is given up first, then cp. A case that needs no more devices
        than there are stays as it is. Raises ConfigError where a grid doesn't fit.
        """
        if devices >= self.devices:
            return self
        stated = {"tp": self.tp, "pp": self.pp, "ep": self.ep, "etp": self.etp}
        stated |= dict(self.at.get(devices, {}))
        left, over = divmod(devices, stated["tp"] * stated["pp"])
        if over or not left:
            raise ConfigError(
                f"case {self.name!r} can't shrink to {devices} devices: tp*pp ="
                f" {stated['tp']}*{stated['pp']} doesn't divide {devices}; restate them with"
                f" at={{{devices}: {{...}}}} or use a suite with more devices."
            )
        stated.setdefault("cp", gcd(self.cp, left))
        return replace(self, devices=devices, at={}, **stated)


def _check_grids(case: Case) -> None:
    for name, axes in (("dense", ("tp", "cp", "pp")), ("expert", ("etp", "ep", "pp"))):
        size = 1
        for axis in axes:
            size *= getattr(case, axis)
        if case.devices % size:
            shown = "*".join(f"{axis}={getattr(case, axis)}" for axis in axes)
            raise ConfigError(
                f"case {case.name!r}: the {name} grid {shown} = {size} doesn't divide"
                f" {case.devices} devices{_advice(case, name)}."
            )


def _advice(case: Case, grid: str) -> str:
    """The largest expert-parallel size that would fit, where that is the remedy."""
    rest = case.etp * case.pp
    if grid == "dense" or case.devices % rest:
        return ""
    fits = gcd(case.ep, case.devices // rest)
    return f'; restate it with at={{{case.devices}: {{"ep": {fits}}}}}, or ep={fits}'
