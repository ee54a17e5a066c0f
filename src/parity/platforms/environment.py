"""Every environment variable that Parity sets for its processes, with value, source and reason.

A value that the user has set always wins, an empty one included. Used by the runtimes to start a
process and by `parity doctor` to show the table; nothing else in Parity sets such a variable.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from parity.platforms.platform import Platform, Role


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable of a role's process."""

    name: str
    value: str  # what the process gets
    role: Role
    source: str  # who decides: "environment" for the user's own value
    reason: str  # why Parity wants its default
    default: str  # what Parity would set
    is_users_own: bool


def settings(
    platform: Platform,
    role: Role,
    environment: Mapping[str, str],
    *,
    ray_version: str | None = None,
    is_under_ray: bool = False,
) -> tuple[Setting, ...]:
    """The variables of a role, sorted by name; `environment` is the user's.

    `is_under_ray` adds the variables that keep Ray from choosing the devices of a process whose
    devices Parity itself chooses.
    """
    found = list(platform.defaults(role, environment))
    rows = [(each.name, each.value, each.source or platform.name, each.reason) for each in found]
    if is_under_ray and role != "driver":
        version = "of an unknown version" if ray_version is None else ray_version
        rows += [
            (name, "1", platform.name, f"Ray {version} mustn't set the list that Parity sets")
            for name in platform.ray_noset_variables(ray_version)
        ]
    return tuple(
        Setting(
            name=name,
            value=environment.get(name, value),
            role=role,
            source="environment" if name in environment else source,
            reason=reason,
            default=value,
            is_users_own=name in environment,
        )
        for name, value, source, reason in sorted(rows)
    )


def to_set(found: tuple[Setting, ...]) -> dict[str, str]:
    """The variables that a child process doesn't inherit from the user already."""
    return {each.name: each.value for each in found if not each.is_users_own}
