"""Patterns of paths and names, in one meaning: `*` stays in a folder, `**` crosses folders.

Used for path rules, excluded folders and suites of a rule. Invariants: a pattern matches whole
paths only, and letters in the right case only; no path takes more than a glance, whatever the
pattern, for paths of a pull request are a stranger's.
"""

import re
from collections.abc import Sequence
from functools import cache

Piece = re.Pattern[str] | None  # of one folder or name; None: any number of folders


def expands(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole path or name.

    `**` stands for any number of folders, at the end for at least one name; as a part of a name
    it is the same as `*`. A pattern without `/` matches in every folder.
    """
    return _matches(_compiled(pattern), text.split("/"))


@cache
def _compiled(pattern: str) -> tuple[Piece, ...]:
    text = pattern if "/" in pattern else f"**/{pattern}"
    names = (f"{text}**" if text.endswith("/") else text).split("/")
    if names[-1] == "**":
        names[-1:] = ["**", "*"]
    return tuple(None if name == "**" else _name(name) for name in names)


def _name(pattern: str) -> re.Pattern[str]:
    """`*` takes as little as will do, once and for all: the first match of a piece is the best."""
    first, *others = (
        "".join("." if each == "?" else re.escape(each) for each in piece)
        for piece in re.split(r"\*+", pattern)
    )
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    return re.compile(
        first + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{last}", re.DOTALL
    )


def _matches(pieces: Sequence[Piece], names: Sequence[str]) -> bool:
    """Where a name doesn't match, the last `**` before it takes one folder more."""
    piece = name = 0
    retry: tuple[int, int] | None = None
    while name < len(names):
        wanted = pieces[piece] if piece < len(pieces) else None
        if piece < len(pieces) and wanted is None:
            retry = (piece + 1, name)
            piece += 1
        elif wanted is not None and wanted.fullmatch(names[name]):
            piece, name = piece + 1, name + 1
        elif retry is not None:
            piece, name = retry[0], retry[1] + 1
            retry = (piece, name)
        else:
            return False
    return all(each is None for each in pieces[piece:])
