"""Checks cron lines as hosted CI services read them: five fields, UTC, POSIX syntax.

Used by `loading.py`: a line that the service refuses would switch a schedule off in silence.
"""

import re
from collections.abc import Sequence

FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()),
    ("day of week", 0, 6, "SUN MON TUE WED THU FRI SAT".split()),
)
ITEM = re.compile(r"(\*|(?P<low>\w+)(-(?P<high>\w+))?)(/(?P<step>\d{1,3}))?", re.ASCII)
DAYS = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))


def check_cron(line: str) -> str | None:
    """What is wrong with a cron line; None where nothing is."""
    fields = line.split(" ")
    if len(fields) != len(FIELDS):
        return f"{len(fields)} fields, and 5 are needed (minute hour day month weekday), one space"
    for text, (name, least, most, names) in zip(fields, FIELDS, strict=True):
        for item in text.split(","):
            if not _fits(item, least, most, names):
                return f"{item!r} is no {name} ({least} to {most})"
    _, _, day, month, weekday = fields
    if weekday == "*" and min(_values(day, 2)) > max(DAYS[each] for each in _values(month, 3)):
        return "no such month has such a day, so it would never start"
    return None


def _values(text: str, field: int) -> set[int]:
    """Every value of a field that is known to fit."""
    _, least, most, names = FIELDS[field]
    found: set[int] = set()
    for item in text.split(","):
        parts = ITEM.fullmatch(item)
        assert parts is not None, item
        low = least if parts["low"] is None else _value(parts["low"], least, names) or least
        high = most if parts["low"] is None or parts["step"] else low
        high = high if parts["high"] is None else _value(parts["high"], least, names) or most
        found.update(range(low, high + 1, int(parts["step"] or 1)))
    return found


def _fits(item: str, least: int, most: int, names: Sequence[str]) -> bool:
    found = ITEM.fullmatch(item)
    if found is None or (found["step"] is not None and int(found["step"]) < 1):
        return False
    ends = [end for end in (found["low"], found["high"]) if end is not None]
    values = [_value(end, least, names) for end in ends]
    if any(value is None or not least <= value <= most for value in values):
        return False
    known_values = [value for value in values if value is not None]
    return known_values == sorted(known_values)


def _value(word: str, least: int, names: Sequence[str]) -> int | None:
    if word.isdecimal():
        return int(word)
    return names.index(word.upper()) + least if word.upper() in names else None
