"""The actions that rendered workflows use, each pinned to one full commit.

A tag can be moved, a commit can't. `[workflow.actions]` of `ci.toml` replaces a pin without a new
Parity: `checkout = "actions/checkout@<40 hex digits> v6.0.2"`.
"""

import re
from dataclasses import dataclass

from parity.ci.toml import Table

PIN = re.compile(r"([A-Za-z0-9_.-]+/[A-Za-z0-9_./-]+)@([0-9a-f]{40}) (v\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Action:
    """One pinned action."""

    name: str
    commit: str
    version: str  # the tag that the commit had; a comment for people

    @property
    def uses(self) -> str:
        """What a step's `uses` says."""
        return f"{self.name}@{self.commit}"


ACTIONS = {
    "checkout": Action("actions/checkout", "de0fac2e4500dabe0009e67214ff5f5447ce83dd", "v6.0.2"),
    "python": Action("actions/setup-python", "a309ff8b426b58ec0e2a45f0f869d46889d02405", "v6.2.0"),
    "upload": Action(
        "actions/upload-artifact", "b7c566a772e6b6bfb58ed0dc250532a479d7789f", "v6.0.0"
    ),
}


def read_action(table: Table, key: str) -> Action:
    """The pin that the table has under a key."""
    value = table.text(key)
    found = PIN.fullmatch(value)
    if found is None:
        raise table.error(
            key, f"is {value!r}; write owner/name@COMMIT vX.Y.Z with a full commit of 40 digits."
        )
    return Action(found[1], found[2], found[3])
