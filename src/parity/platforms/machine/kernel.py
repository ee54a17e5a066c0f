"""Counts devices and reads versions from files that kernel drivers write.

Such a file is written by a driver that has bound a device and says which one it is; that a folder
or a node exists says nothing. Used by the platforms. Invariants: never raises, never initialises
a runtime; what isn't there has no key, what can't be read is None.
"""

import re
from collections.abc import Callable
from pathlib import Path


def count_devices(
    source: str, folder: Path, pattern: str, is_device: Callable[[str], bool]
) -> dict[str, int | None]:
    """{source: the files under `folder` that match `pattern` and describe a device}.

    A file that this process isn't permitted to read is of a device that it may not use (the
    kernel answers so where a container isn't given the device), and isn't counted.
    """
    try:
        if not folder.is_dir():
            return {}
        texts = [text for path in folder.glob(pattern) if (text := _permitted(path)) is not None]
    except (OSError, UnicodeDecodeError):
        return {source: None}
    return {source: sum(is_device(text) for text in texts)}


def read_version(name: str, path: Path, pattern: str) -> dict[str, str | None]:
    """{name: the first match of `pattern` in a file}; {} where there is no file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError):
        return {name: None}
    match = re.search(pattern, text)
    return {name: None if match is None else match[match.lastindex or 0]}


def _permitted(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (PermissionError, FileNotFoundError):  # not for this process; gone since it was listed
        return None
