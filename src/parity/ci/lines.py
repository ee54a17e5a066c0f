"""Finds the line of a key in TOML text, for error messages; `tomllib` itself keeps no lines.

Used by `toml.py`. Invariant: only line numbers depend on it, never a value.
"""

import re

HEADER = re.compile(r"^\s*\[(\[)?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
PART = re.compile(r""""([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+)""")


class Lines:
    """The line (from 1) of every header and key of a TOML text."""

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, ...], int] = {}
        current: tuple[str, ...] = ()
        counts: dict[tuple[str, ...], int] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if header := HEADER.match(line):
                current = _parts(header[2])
                if header[1]:
                    index = counts.get(current, 0)
                    counts[current] = index + 1
                    current = (*current[:-1], f"{current[-1]}[{index}]")
                self._found.setdefault(current, number)
            elif key := KEY.match(line):
                self._found.setdefault((*current, *_parts(key[1])), number)

    def of(self, place: tuple[str, ...]) -> int:
        """The line of a key, or of the nearest table around it that has one."""
        for end in range(len(place), 0, -1):
            if place[:end] in self._found:
                return self._found[place[:end]]
        return 1


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(first or second or third for first, second, third in PART.findall(dotted))
