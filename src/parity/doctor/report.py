"""What the doctor found: the decision, what Parity will set, libraries, limits, and findings.

Made by `examine.py`, shown by `show.py` and as JSON. Invariant: whatever makes the exit status
different from 0 is a finding with a remedy.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, cast

from parity.platforms.decision import Decision
from parity.platforms.facts import Facts
from parity.types import Json

Level = Literal["error", "warning"]
Presence = Literal["present", "missing", "unknown"]
USABLE, WITH_WARNINGS, UNUSABLE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to be done, or to be known: errors make this machine unusable for Parity."""

    level: Level
    area: str  # platform, plugins, libraries, limits, variables
    message: str  # what was found
    remedy: str  # what to do
    detail: str | None = None  # a traceback


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable that Parity sets for the processes of a role."""

    role: str
    name: str
    value: str | None  # what the process gets; None: known only when it is placed
    source: str  # who decides: `environment` is the user
    reason: str
    default: str | None  # what Parity would set
    is_users_own: bool  # the user's value wins over Parity's
    only_under_ray: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name or an endpoint that Parity uses in a library."""

    name: str
    presence: Presence
    used_for: str


@dataclass(frozen=True, slots=True)
class Library:
    """One library; `version` is None where it isn't installed."""

    name: str
    version: str | None
    is_required: bool
    used_for: str
    symbols: tuple[Symbol, ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of this machine or process; None where it can't be read."""

    name: str
    value: str | None
    needed: str
    is_enough: bool | None  # None: unknown


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the doctor shows."""

    facts: Facts
    decision: Decision
    variables: tuple[Variable, ...]
    libraries: tuple[Library, ...]
    limits: tuple[Limit, ...]
    findings: tuple[Finding, ...]
    is_from_file: bool  # --facts: another machine, whose libraries and limits aren't known

    @property
    def exit_status(self) -> int:
        """0 usable, 1 usable with warnings, 2 not usable."""
        levels = {finding.level for finding in self.findings}
        if "error" in levels:
            return UNUSABLE
        return WITH_WARNINGS if "warning" in levels else USABLE

    def to_json(self) -> dict[str, Json]:
        """Plain data; `facts` can be given to `--facts` again."""
        return {
            "status": ("usable", "usable with warnings", "not usable")[self.exit_status],
            "exit_status": self.exit_status,
            "decision": self.decision.to_json(),
            "findings": _plain(self.findings),
            "variables": _plain(self.variables),
            "libraries": _plain(self.libraries),
            "limits": _plain(self.limits),
            "facts": self.facts.to_json(),
            "is_from_file": self.is_from_file,
        }


def _plain(rows: Sequence[Finding | Variable | Library | Limit]) -> list[Json]:
    return [cast("Json", asdict(row)) for row in rows]
