"""One episode as a line of JSON, the short way: plain values by orjson, the siblings' part once.

Used by `dump.py`, whose thread takes turns with the event loop: every microsecond here is one that
the driver waits. Invariant: a line says what `dumps` of the same record would say, or there is
none (None): then a value isn't plain, and the caller goes the long way.
"""

import math
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as _quoted

import orjson

from parity.observe.encode import SURROGATE


def line(head: str, own: Mapping[str, object], arrays: Mapping[str, object]) -> str | None:
    """The line of one episode.

    Args:
        head: the text of an object, without its end, that begins the line.
        own: texts and numbers.
        arrays: sequences of numbers or of flags.
    """
    members = [(name, _value(value)) for name, value in own.items()]
    columns = _columns(arrays)
    if columns is None or any(text is None for _, text in members):
        return None
    middle = ", ".join([f'"{name}": {text}' for name, text in members])
    return f"{head}, {middle}, {columns}\n"


def _value(value: object) -> str | None:
    kind = type(value)
    if kind is str:
        text = str(value)
        is_plain = text.isascii() or SURROGATE.search(text) is None
        return _quoted(text) if is_plain else None
    if kind is int or (kind is float and math.isfinite(value)):  # pyright: ignore[reportArgumentType]
        return repr(value)
    if kind is dict and not value:
        return "{}"
    return "null" if value is None else None


def _columns(arrays: Mapping[str, object]) -> str | None:
    """The arrays as members of an object, with its end; only numbers and flags are plain."""
    try:
        text = orjson.dumps(arrays)
    except TypeError:
        return None
    number = len(arrays)
    is_flat = (text.count(b"["), text.count(b"{"), text.count(b'"')) == (number, 1, 2 * number)
    is_plain = is_flat and b"null" not in text  # which stands for what isn't finite
    return text[1:].decode("ascii") if is_plain else None
