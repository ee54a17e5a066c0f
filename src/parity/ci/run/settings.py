"""[run] of ci.toml: how tests are run on a machine, and which failures are the machine's.

```toml
[run]
retries = 1                # after an infrastructure failure, and only then
retry_wait_s = 10
lease_dir = "/tmp/parity-ci-leases"   # must be one folder for all jobs of a host
[run.infrastructure]       # name = regular expression, searched in the end of the output
"lost connection" = "Connection reset by peer"
```
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parity.ci.toml import Table

LEASE_DIR = Path("/tmp/parity-ci-leases")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The section, field by field; the defaults hold where ci.toml has no such key."""

    retries: int = 1  # further attempts after an infrastructure failure
    retry_wait_s: float = 10.0
    infrastructure: Mapping[str, re.Pattern[str]] = field(
        default_factory=dict[str, re.Pattern[str]]
    )
    lease_dir: Path = LEASE_DIR
    lease_timeout_s: float = 600.0  # how long to wait for devices that other jobs hold
    memory_tolerance_mib: float = 512.0  # device memory that may be in use beside the baseline
    max_used_mib: float = 2048.0  # of a device that nobody uses; drivers keep some for themselves
    ready_timeout_s: float = 120.0  # for devices to become free of others' leftovers
    memory_settle_s: float = 60.0  # for a driver to give memory back after a test

    @classmethod
    def of(cls, table: Table) -> "RunSettings":
        """Read the section strictly; raises ConfigError with file and line."""
        settings = cls(
            retries=table.integer("retries", cls().retries),
            retry_wait_s=table.number("retry_wait_s", cls().retry_wait_s),
            infrastructure=_patterns(table),
            lease_dir=Path(table.text("lease_dir", str(LEASE_DIR))).expanduser(),
            lease_timeout_s=table.number("lease_timeout_s", cls().lease_timeout_s),
            memory_tolerance_mib=table.number("memory_tolerance_mib", cls().memory_tolerance_mib),
            max_used_mib=table.number("max_used_mib", cls().max_used_mib),
            ready_timeout_s=table.number("ready_timeout_s", cls().ready_timeout_s),
            memory_settle_s=table.number("memory_settle_s", cls().memory_settle_s),
        )
        table.done()
        return settings


def _patterns(table: Table) -> dict[str, re.Pattern[str]]:
    inner = table.table("infrastructure")
    patterns: dict[str, re.Pattern[str]] = {}
    for name, text in table.mapping("infrastructure").items():
        try:
            patterns[name] = re.compile(text)
        except re.error as error:
            raise inner.error(name, f"isn't a regular expression ({error}).") from error
        if patterns[name].search(""):
            raise inner.error(name, f"is {text!r}, which matches everything; be more precise.")
    return patterns
