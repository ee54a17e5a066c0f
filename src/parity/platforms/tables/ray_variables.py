"""The variables that keep Ray from setting the visibility lists of its workers, by version.

Read from `ray/_private/accelerators/` of the releases 2.9.3, 2.30.0, 2.40.0, 2.44.1, 2.45.0,
2.46.0, 2.50.0 and 2.60.0; `tests/unit/platforms/tables/test_ray_variables.py` compares the table
with the Ray that is installed. A name that this version doesn't read has no effect, so where the
version isn't known all names are given. Used by the platforms.
"""

import re
from dataclasses import dataclass

PREFIX = "RAY_EXPERIMENTAL_NOSET_"
Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One list that Ray sets, and in which versions."""

    visibility: str  # the list; the variable that stops Ray is PREFIX + this
    since: Version
    until: Version | None = None  # the first version that doesn't

    @property
    def noset(self) -> str:
        """The variable that keeps Ray from setting the list."""
        return PREFIX + self.visibility

    def holds(self, version: Version | None) -> bool:
        """Whether this version of Ray reads the variable; unknown versions may."""
        if version is None:
            return True
        return version >= self.since and (self.until is None or version < self.until)


ROWS = (
    Row("CUDA_VISIBLE_DEVICES", since=(2, 0)),
    Row("HIP_VISIBLE_DEVICES", since=(2, 45)),
    Row("ROCR_VISIBLE_DEVICES", since=(2, 10), until=(2, 45)),
    Row("ASCEND_RT_VISIBLE_DEVICES", since=(2, 10)),
)
# The first Ray that refuses to start where ROCR_VISIBLE_DEVICES is set and HIP's isn't.
REFUSES_ROCR_ALONE: Version = (2, 45)
# The first Ray that knows RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO, somewhere in (2.46, 2.50].
KNOWS_OVERRIDE_ON_ZERO: Version = (2, 47)


def parse_version(text: str | None) -> Version | None:
    """(major, minor) of a version such as 2.60.0 or 3.0.0.dev0; None where it isn't one."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", text or "")
    return None if match is None else (int(match[1]), int(match[2]))


def noset_variables(lists: tuple[str, ...], ray_version: str | None) -> tuple[str, ...]:
    """The variables for these visibility lists that this version of Ray reads, in their order.

    Raises KeyError for a list that isn't in the table.
    """
    rows = {row.visibility: row for row in ROWS}
    version = parse_version(ray_version)
    return tuple(rows[name].noset for name in lists if rows[name].holds(version))


def known_names() -> tuple[str, ...]:
    """Every variable of this kind that some version of Ray reads, other vendors' included."""
    return tuple(row.noset for row in ROWS) + tuple(PREFIX + name for name in OTHER_VENDORS)


OTHER_VENDORS = (
    "ASCEND_VISIBLE_DEVICES",
    "FURIOSA_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "MBLT_RT_VISIBLE_DEVICES",
    "NEURON_RT_VISIBLE_CORES",
    "ONEAPI_DEVICE_SELECTOR",
    "RBLN_RT_VISIBLE_DEVICES",
    "TENSTORRENT_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS",
    "ZE_AFFINITY_MASK",
)
