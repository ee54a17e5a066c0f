"""Every environment variable that Parity sets for its processes, by role.

The platform says what a role needs (`platforms/environment.py`); beside it stand what carries the
driver's decision and the list of devices, which has a value only once a process is placed.
"""

from collections.abc import Mapping

from parity.doctor.report import Variable
from parity.platforms.decision import VARIABLE as DECISION
from parity.platforms.environment import Setting, settings
from parity.platforms.platform import ROLES, Platform, Role


def examine(
    platform: Platform, environment: Mapping[str, str], ray_version: str | None
) -> list[Variable]:
    """The rows of all roles, in the order of the roles."""
    rows: list[Variable] = []
    for role in ROLES:
        rows += _of_role(platform, role, environment, ray_version)
    return rows


def _of_role(
    platform: Platform, role: Role, environment: Mapping[str, str], ray_version: str | None
) -> list[Variable]:
    always = {each.name for each in settings(platform, role, environment)}
    found = settings(platform, role, environment, ray_version=ray_version, is_under_ray=True)
    rows = [_row(each, only_under_ray=each.name not in always) for each in found]
    if role == "driver":
        return rows
    rows.append(
        Variable(
            role=role,
            name=DECISION,
            value=None,
            source="driver",
            reason="hands over the decision above, which the process verifies",
            default=None,
            is_users_own=False,
            only_under_ray=True,
        )
    )
    if platform.visibility is not None:
        name = next((n for n in platform.visibility.inner if n in environment), None)
        rows.append(
            Variable(
                role=role,
                name=name or platform.visibility.inner[0],
                value=None,
                source="driver",
                reason="the devices that the process is given, out of the driver's own",
                default=None,
                is_users_own=False,
                only_under_ray=True,
            )
        )
    return rows


def _row(setting: Setting, *, only_under_ray: bool) -> Variable:
    return Variable(
        role=setting.role,
        name=setting.name,
        value=setting.value,
        source=setting.source,
        reason=setting.reason,
        default=setting.default,
        is_users_own=setting.is_users_own,
        only_under_ray=only_under_ray,
    )
