"""Whether torch can be imported, tried in a process of its own.

A build for another driver, Python or libc fails at import, and may take its process with it; this
one must live to say so. The child imports torch and asks it nothing, so no device runtime starts.
"""

import sys

from parity.doctor.report import Finding
from parity.platforms import smi

DEADLINE_S = 120.0  # a cold file system on a busy node takes a minute
AREA = "libraries"


def try_torch(*, module: str = "torch", deadline_s: float = DEADLINE_S) -> list[Finding]:
    """A finding where the import fails, and none where it works."""
    code = f"import sys; sys.tracebacklimit = 0; import {module}"
    ran = smi.run([sys.executable, "-c", code], deadline_s=deadline_s)
    if ran.status == "ok":
        return []
    return [
        Finding(
            "error",
            AREA,
            f"importing {module} fails: {ran.reason}",
            f"install {module} again, for this Python and this driver.",
        )
    ]
