"""Patterns of paths and names, in one meaning: `*` stays in a folder, `**` crosses folders.

Used for path rules, excluded folders and suites of a rule. Invariant: a pattern matches whole
paths only, and letters in the right case only.
"""

import re
from functools import cache


def expands(pattern: str, text: str) -> bool:
    """Whether the pattern matches the whole path or name."""
    return compiled(pattern).fullmatch(text) is not None


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern; a pattern without `/` matches in every folder."""
    text = pattern if "/" in pattern else f"**/{pattern}"
    text = f"{text}**" if text.endswith("/") else text
    pieces: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("**/", at):
            pieces.append("(?:[^/]+/)*")
            at += 3
        elif text.startswith("**", at):
            pieces.append(".*")
            at += 2
        elif text[at] == "*":
            pieces.append("[^/]*")
            at += 1
        elif text[at] == "?":
            pieces.append("[^/]")
            at += 1
        else:
            pieces.append(re.escape(text[at]))
            at += 1
    return re.compile("".join(pieces), re.DOTALL)
