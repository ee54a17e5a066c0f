"""Texts that may be anything: reads test files, and shows values of them in messages.

Used by `toml.py`, `registry/` and `case_table.py`. Invariants: lines are counted as
Python counts them; what is no plain file, or too large to be written by people, isn't opened.
"""

import ast
import stat
from pathlib import Path

MOST_BYTES = 2 * 1024**2
SHOWN_CHARACTERS = 120


def read_python(path: Path) -> str:
    """The text with `\\n` as its only line end and without a byte order mark.

    Raises OSError, and ValueError (UnicodeDecodeError among them) with the reason.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no plain file")
    if found.st_size > MOST_BYTES:
        raise ValueError(f"it has {found.st_size} bytes; at most {MOST_BYTES} are read")
    text = path.read_bytes().decode("utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def shown(value: object) -> str:
    """A literal of a test file as messages show it; whatever it is, short and on one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of ten thousand digits, lists in lists
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def source(node: ast.AST) -> str:
    """The text of an expression as messages show it."""
    try:
        text = ast.unparse(node)
    except (ValueError, RecursionError):
        return "..."
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}..."


def harmless(text: str) -> str:
    """A stranger's text on one line, without control characters and commands of a CI service.

    Such services obey lines of their log that begin with `::word` or hold `##[word]`.
    """
    line = " ".join(text.split())
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line.replace("::", ": :").replace("##[", "## [")
