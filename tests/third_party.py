"""Installs a package of somebody else: modules and entry points in a folder on the import path."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def installed(
    folder: Path,
    modules: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    name: str = "somebody",
) -> Iterator[None]:
    """`modules` by file name; `entry_points` as `{"parity.tasks": {"words": "module:Class"}}`."""
    for path, source in modules.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        importlib.invalidate_caches()
        for path in modules:
            top = path.partition("/")[0].removesuffix(".py")
            for module in [m for m in sys.modules if m == top or m.startswith(f"{top}.")]:
                del sys.modules[module]
