"""What the installed torch was built for, read from its `version.py` without importing torch.

Importing torch loads the vendor's libraries and every backend that is registered with it, whose
order then could decide; the file says the same and costs nothing. A torch that is imported
already is asked itself. Used by `collect.py` and by the device calls.
"""

import runpy
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from parity.platforms.facts import TorchBuild


def read_torch_build() -> TorchBuild | None:
    """The build; None where torch isn't installed or its version can't be read. Never raises."""
    if "torch" in sys.modules and (version := sys.modules.get("torch.version")) is not None:
        return build_of(vars(version))
    try:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        return build_of(runpy.run_path(str(Path(spec.origin).with_name("version.py"))))
    except (ImportError, OSError, SyntaxError, ValueError):
        return None


def build_of(names: Mapping[str, object]) -> TorchBuild | None:
    """From the names of a `version.py`; one that a build doesn't have is None."""
    version = _text(names, "__version__")
    if version is None:
        return None
    return TorchBuild(
        version=version,
        cuda=_text(names, "cuda"),
        hip=_text(names, "hip"),
        xpu=_text(names, "xpu"),
    )


def _text(names: Mapping[str, object], name: str) -> str | None:
    """An empty or unknown value is none; a version may be of a class of its own."""
    value = names.get(name)
    return str(value) if isinstance(value, str) and value else None
