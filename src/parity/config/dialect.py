"""The YAML that Parity reads and writes, the same that Hydra reads: `1e-6` is a number.

Plain values only, both ways. Invariant: `yaml.load(yaml.dump(x, Dumper=Dumper), Loader=Loader)`
equals `x` for JSON-like `x`; in particular the text "1e5" is quoted.
"""

import re
from collections.abc import Hashable

import yaml

_FLOAT = re.compile(r"^[-+]?([0-9][0-9_]*)(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_STARTS = list("-+0123456789")


class Loader(yaml.SafeLoader):
    """Reads plain values; a key that stands twice is an error, as it is for Hydra."""

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001 (PyYAML's own signature)
    ) -> dict[Hashable, object]:
        """Read a mapping."""
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(getattr(key, "value", key))
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} stands twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


class Dumper(yaml.SafeDumper):
    """Writes plain values, and quotes every text that would be read as something else."""


for each in (Loader, Dumper):
    each.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _STARTS)
