"""The YAML that Parity reads and writes, the same that Hydra reads: `1e-6` is a number.

Plain values only, both ways. Invariant: `yaml.load(yaml.dump(x, Dumper=Dumper), Loader=Loader)`
equals `x` for JSON-like `x`; in particular the text "1e5" is quoted.
"""

import re

import yaml

_FLOAT = re.compile(r"^[-+]?([0-9][0-9_]*)(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_STARTS = list("-+0123456789")


class Loader(yaml.SafeLoader):
    """Reads plain values."""


class Dumper(yaml.SafeDumper):
    """Writes plain values, and quotes every text that would be read as something else."""


for each in (Loader, Dumper):
    each.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, _STARTS)
