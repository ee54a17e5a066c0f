"""Compatibility patches: a library of an older container made to look as the tests expect.

`[patches.NAME]` of `ci.toml` declares each one; `wrapped` puts the wrapper in front of a test's
command, and `active` names the patches of a plan.
"""

from parity.ci.patches.declared import Patch, active, chosen, read_patches
from parity.ci.patches.wrapper import wrapped

__all__ = ["Patch", "active", "chosen", "read_patches", "wrapped"]
