"""What the start-up file of a patched Python process calls; written by `wrapper.py`.

It then runs the start-up file that ours stands in front of, if the environment has one.
"""

import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.ci.patches.declared import Patch
from parity.ci.patches.hook import install

DECLARED = "patches.json"


def begin(folder: Path) -> None:
    """Watch imports of this process for the patches that the folder describes."""
    declared = json.loads((folder / DECLARED).read_text(encoding="utf-8"))
    patches = [_patch(fields) for fields in declared["patches"]]
    install(patches, root=Path(declared["root"]), folder=folder)
    _run_next(folder)


def _patch(fields: Mapping[str, Any]) -> Patch:
    """What `wrapper.write_start` wrote with `asdict`."""
    known: dict[str, Any] = {**fields, "backends": tuple(fields["backends"])}
    return Patch(**known)


def _run_next(folder: Path) -> None:
    rest = [place for place in sys.path if Path(place or ".").resolve() != folder.resolve()]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
