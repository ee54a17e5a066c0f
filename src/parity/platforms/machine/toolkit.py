"""Finds a vendor's toolkit and compares its versions, release candidates included.

Used by platforms whose abilities depend on such a version. Invariant: never raises.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from parity.platforms.machine import kernel

FINAL = (2, 0)
STAGES = {"alpha": 0, "beta": 0, "t": 0, "b": 0, "rc": 1}
STAGE = re.compile(r"[._-]?(alpha|beta|rc|t|b)[._-]?([0-9]{1,6})?", re.IGNORECASE)
Order = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


def read_version(
    name: str, variables: Sequence[str], folders: Sequence[Path], file: str
) -> dict[str, str | None]:
    """{name: the line `version=…` of `file`} in the first toolkit that has the file; else {}.

    The toolkit that a variable names is looked at before the well-known folders.
    """
    named = [Path(os.environ[variable]) for variable in variables if os.environ.get(variable)]
    for folder in (*named, *folders):
        found = kernel.read_version(name, folder / file, r"(?im)^version\s*=\s*(\S+)")
        if found:
            return found
    return {}


def order(text: str | None) -> Order | None:
    """What versions such as 25.3.rc1, 8.3.RC1.alpha003 and 25.2.0 are compared by.

    A test or release candidate comes before the release; None where it isn't a version.
    """
    match = re.match(r"[vV]?([0-9]{1,6}(?:\.[0-9]{1,6})*)", (text or "").strip())
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    while len(numbers) > 1 and not numbers[-1]:  # 25.3 is 25.3.0
        numbers.pop()
    rest, stages = (text or "").strip()[match.end() :], []
    while (found := STAGE.match(rest)) is not None:  # RC1.alpha003 comes before RC1
        stages.append((STAGES[found[1].lower()], int(found[2] or 0)))
        rest = rest[found.end() :]
    if rest and rest[0] not in "._+-":
        return None
    return tuple(numbers), (*stages, FINAL)
