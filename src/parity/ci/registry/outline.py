"""Cuts a test file down to the statements that could register it, before Python parses it.

Parsing ten thousand whole files takes half a minute; their registrations are a few lines each.
The outline of a text has the same lines, and all of them are empty but those of top-level
statements that begin with a registering name or import one; behind the last such name nothing
is looked at. Used by `reading.py`. Invariant: wherever the cheap scan could be wrong (a name in
any other place, brackets that don't close, an f-string with quotes inside), there is no outline
and the whole text is parsed.
"""

import re
from unicodedata import normalize

# The lookbehind stands behind the literal, so that the literal is what is searched for.
NAME = re.compile(r"register_(?<!\wregister_)(?:[A-Za-z0-9_]+_ci|ci_[A-Za-z0-9_]+)\b")
CALL = re.compile(rf"(?:^|\n)({NAME.pattern})\s*\(")
UNCLOSED = ('"""', "'''", '"', "'")
TOKEN = re.compile(
    r'#[^\n]*|"""(?:[^"\\]|\\.|"(?!""))*"""|\'\'\'(?:[^\'\\]|\\.|\'(?!\'\'))*\'\'\''
    r'|"""|\'\'\'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|["\']',
    re.DOTALL,
)
NEXT = re.compile(r"\n(?=[^\s)\]}])")  # where another top-level statement can begin
IMPORT = re.compile(r"from [\w.]+ import ")
MOST_NAMES = 500  # each is looked for in all of the text before it
OPEN, CLOSE = "([{", ")]}"


def mentions(text: str) -> bool:
    """Whether a registering name occurs anywhere in the text, strings and comments included."""
    return NAME.search(text) is not None or _is_disguised(text)


def _is_disguised(text: str) -> bool:
    """Whether other letters stand for a registering name: Python reads identifiers as NFKC."""
    if text.isascii():
        return False
    return NAME.findall(normalize("NFKC", text)) != NAME.findall(text)


class _Unclear(Exception):  # noqa: N818 no failure: the whole text is parsed instead
    """The cheap scan can't tell where a string ends."""


def first_call(text: str) -> int:
    """The line of the first call at the beginning of a line, strings left out; 0 for none."""
    code = _code(text)
    found = CALL.search(code) if code is not None else None
    return text.count("\n", 0, found.start(1)) + 1 if found else 0


def outline(text: str) -> str | None:
    """The text with all other lines emptied; None where only a full parse can tell."""
    if _is_disguised(text):
        return None
    last = 0
    for number, found in enumerate(NAME.finditer(text)):
        last = found.end()
        if number == MOST_NAMES:
            return None
    after = NEXT.search(text, last)
    if after is not None and (short := _outline(text[: after.start() + 1])) is not None:
        return short
    return _outline(text)


def _outline(text: str) -> str | None:
    code = _code(text)
    if code is None or _depth(code):
        return None
    spans: list[tuple[int, int]] = []
    end = 0
    for found in NAME.finditer(code):
        if found.start() < end:
            continue
        span = _statement(code, found)
        if span is None:
            return None
        spans.append(span)
        end = span[1]
    return _only(text, spans)


def _code(text: str) -> str | None:
    """The text with strings and comments blanked out; None where a quote leads nowhere.

    A token is as long as before. Since Python 3.12 the braces of an f-string may hold any quotes;
    then a token of this scan ends inside the braces, and they don't balance. The scan ends at the
    first such token: after it, each quote could search the whole rest in vain.
    """

    def blank(found: re.Match[str]) -> str:
        token = found[0]
        if token in UNCLOSED or (
            "{" in token
            and token[0] != "#"
            and token.count("{") != token.count("}")
            and _is_formatted(text, found.start())
        ):
            raise _Unclear
        if "\n" in token:
            return "".join("\n" if character == "\n" else "s" for character in token)
        return ("s" if token[0] != "#" else " ") + " " * (len(token) - 1)

    try:
        return TOKEN.sub(blank, text)
    except _Unclear:
        return None


def _is_formatted(text: str, quote: int) -> bool:
    """Whether the string whose quote stands there has an f or t before it."""
    return any(each in "fFtT" for each in text[max(0, quote - 2) : quote])


def _depth(code: str) -> int:
    """How many brackets are open at the end; code without strings and comments."""
    return sum(code.count(each) for each in OPEN) - sum(code.count(each) for each in CLOSE)


def _statement(code: str, found: re.Match[str]) -> tuple[int, int] | None:
    """The first and the end position of the lines of a top-level call or import; else None."""
    start = code.rfind("\n", 0, found.start()) + 1
    if start != found.start():
        start = _import_start(code, start, found.start())
    if start < 0 or _depth(code[:start]) or code.endswith("\\\n", 0, start):
        return None
    at, depth = start, 0
    while at <= len(code):
        stop = code.find("\n", at)
        stop = len(code) if stop < 0 else stop
        depth += _depth(code[at:stop])
        at = stop + 1
        if stop >= found.end() and depth <= 0 and not code.endswith("\\", 0, stop):
            return start, stop
    return None


def _import_start(code: str, line_start: int, name_start: int) -> int:
    """Where the `from ... import` statement around a name begins; -1 where there is none."""
    if IMPORT.match(code, line_start, name_start):
        return line_start
    opener = code.rfind("(", 0, name_start)
    if opener < 0 or ")" in code[opener:name_start]:
        return -1
    first = code.rfind("\n", 0, opener) + 1
    return first if IMPORT.fullmatch(code, first, opener) else -1


def _only(text: str, spans: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    at = 0
    for start, end in spans:
        pieces.append("\n" * text.count("\n", at, start))
        pieces.append(text[start:end])
        at = end
    return "".join(pieces)
