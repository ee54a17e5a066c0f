"""The one JSON encoder: strict (RFC 8259), ASCII, one record per line, types kept.

Used by every file that Parity writes for people and programs. Native JSON values stay as they
are, and numpy and torch scalars become native numbers at any depth. What JSON lacks has a
form with one `$` key, and `decode` undoes it:

    nan, inf, -inf        {"$float": "nan"}
    int beyond 64 bits    {"$int": "-0x1f..."}
    bytes                 {"$bytes": "<base64>"}
    str with surrogates   {"$text": ["before", 55296, "after"]}
    tuple, set, frozenset {"$tuple": [...]}, {"$set": [...]}, {"$frozenset": [...]}
    dict, other keys      {"$map": [[key, value], ...]}
    what can't be encoded {"$unencodable": "type: reason"}

A dict key of the user's own that begins with `$` gets one more `$`. One way only: arrays,
tensors and other sequences become lists, other mappings and dataclasses dicts, paths and dates
text, enums their value. Invariant: `encode` never raises; a value that can't be encoded costs
that value alone and is counted in `lost`. Neither numpy nor torch is imported here.
"""

import base64
import binascii
import dataclasses
import datetime
import enum
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import PurePath
from typing import cast

from parity.errors import DataError
from parity.types import Json

MAX_DEPTH = 60  # nested containers; deeper ones are unencodable
MAX_INT_BITS = 65_536
_INT_LOW, _INT_HIGH = -(2**63), 2**64 - 1  # what every 64-bit reader takes
SURROGATE = re.compile("([\ud800-\udfff])")
_FLOAT_WORDS = {"nan", "inf", "-inf"}


@dataclasses.dataclass(frozen=True, slots=True)
class Unencodable:
    """Stands where a value could not be encoded; `what` is `type: reason`."""

    what: str


def encode(value: object, lost: Counter[str] | None = None) -> Json:
    """`value` as strict JSON data, in new containers.

    Args:
        lost: counts what could not be encoded, by `type: reason`.
    """
    return _Encoder(Counter[str]() if lost is None else lost).encode(value)


def dumps(value: object, lost: Counter[str] | None = None) -> str:
    """`value` as one line of ASCII JSON, without the newline; `lost` as in `encode`."""
    return json.dumps(encode(value, lost), ensure_ascii=True, allow_nan=False)


def loads(line: str | bytes) -> object:
    """The value of one line that `dumps` wrote.

    Raises DataError for anything that isn't strict JSON.
    """
    try:
        return decode(json.loads(line, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise DataError(f"a record isn't strict JSON: {error}.") from error


def decode(value: Json) -> object:
    """Undo `encode`; a `$` form that `encode` never writes stays as it is.

    A set or map whose members can't be hashed (they were dataclasses) comes back as a list.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, body),) = value.items()
        if tag in _DECODERS:
            try:
                return _DECODERS[tag](body)
            except (TypeError, ValueError, OverflowError):
                return {tag: decode(body)}
    return {key[1:] if key.startswith("$$") else key: decode(v) for key, v in value.items()}


class _Encoder:
    """One call of `encode`: what was lost, and which containers are open."""

    def __init__(self, lost: Counter[str]) -> None:
        self._lost = lost
        self._open: set[int] = set()

    def encode(self, value: object) -> Json:
        kind = type(value)
        if value is None or kind is bool:
            return cast("Json", value)
        if kind is str:
            return _text(cast("str", value))
        if kind is float:
            return _float(cast("float", value))
        # Values of users run their own code when they are looked at; anything may be raised.
        try:
            return self._other(value)
        except RecursionError:
            return self._give_up(value, "recursion")
        except Exception as error:  # noqa: BLE001 - one bad value costs only that value
            return self._give_up(value, type(error).__name__)

    def _other(self, value: object) -> Json:
        if isinstance(value, enum.Enum):
            found = self.encode(value.value)
        elif isinstance(value, int):
            found = self._int(int.__index__(value))
        elif isinstance(value, float):
            found = _float(float.__float__(value))
        elif isinstance(value, str):
            found = _text(str.__str__(value))
        elif isinstance(value, bytes | bytearray | memoryview):
            found: Json = {"$bytes": base64.b64encode(bytes(value)).decode("ascii")}
        elif isinstance(value, PurePath):
            found = _text(str(value))
        elif isinstance(value, datetime.date | datetime.time):
            found = value.isoformat()
        elif isinstance(value, Unencodable):
            found = {"$unencodable": value.what}
        else:
            found = self._container(value)
        return found

    def _container(self, value: object) -> Json:
        if id(value) in self._open:
            return self._give_up(value, "contains itself")
        if len(self._open) >= MAX_DEPTH:
            return self._give_up(value, f"nested deeper than {MAX_DEPTH}")
        self._open.add(id(value))
        try:
            return self._opened(value)
        finally:
            self._open.discard(id(value))

    def _opened(self, value: object) -> Json:
        if isinstance(value, list):
            found = self._list(value)
        elif isinstance(value, tuple):
            found: Json = {"$tuple": self._list(value)}
        elif isinstance(value, Mapping):
            found = self._mapping(value)
        elif isinstance(value, set):
            found = {"$set": self._sorted(value)}
        elif isinstance(value, frozenset):
            found = {"$frozenset": self._sorted(value)}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            found = self._mapping({name: getattr(value, name) for name in names})
        else:
            found = self._foreign(value)
        return found

    def _foreign(self, value: object) -> Json:
        """What numpy and torch made, and other sequences and sets."""
        if _is_array(value):
            native = value.tolist()  # pyright: ignore[reportAttributeAccessIssue]
            is_native = type(native) is not type(value)  # a long double stays one
            return self.encode(native) if is_native else self._give_up(value, "no native type")
        if _is_tensor(value):
            host = value.detach().cpu()  # pyright: ignore[reportAttributeAccessIssue]
            return self.encode(host.tolist())
        if isinstance(value, Set):
            return self._sorted(value)
        if isinstance(value, Sequence):
            return self._list(list(value))
        return self._give_up(value, "unknown type")

    def _int(self, value: int) -> Json:
        if _INT_LOW <= value <= _INT_HIGH:
            return value
        if value.bit_length() > MAX_INT_BITS:
            return self._give_up(value, f"more than {MAX_INT_BITS} bits")
        return {"$int": hex(value)}

    def _list(self, items: Sequence[object]) -> list[Json]:
        """The items; long lists of plain numbers (tokens, log-probs) take a fast way."""
        kinds = set(map(type, items))
        if kinds == {float} and all(map(math.isfinite, cast("list[float]", items))):
            return list(cast("list[Json]", items))
        if kinds == {bool} or (
            kinds == {int}
            and min(cast("list[int]", items)) >= _INT_LOW
            and max(cast("list[int]", items)) <= _INT_HIGH
        ):
            return list(cast("list[Json]", items))
        return [self.encode(item) for item in items]

    def _sorted(self, items: Set[object]) -> list[Json]:
        """Members of a set in an order that does not depend on hashing."""
        return sorted((self.encode(item) for item in items), key=json.dumps)

    def _mapping(self, mapping: Mapping[object, object]) -> Json:
        pairs = [(self.encode(key), self.encode(value)) for key, value in mapping.items()]
        named = {f"${key}" if key[:1] == "$" else key: v for key, v in pairs if type(key) is str}
        if len(named) == len(pairs):
            return named
        return {"$map": [[key, value] for key, value in pairs]}

    def _give_up(self, value: object, reason: str) -> Json:
        try:
            name = str.__str__(type(value).__qualname__)
        except Exception:  # noqa: BLE001 - even a type's name may be hostile
            name = "unknown"
        what = SURROGATE.sub("?", f"{name}: {reason}")
        self._lost[what] += 1
        return {"$unencodable": what}


def _float(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": str(value)}


def _text(value: str) -> Json:
    if value.isascii() or SURROGATE.search(value) is None:
        return value
    parts = (part for part in SURROGATE.split(value) if part)
    return {"$text": [ord(part) if SURROGATE.fullmatch(part) else part for part in parts]}


def _is_array(value: object) -> bool:
    """True for numpy arrays and scalars; no numpy in the process, no arrays."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _decode_float(body: Json) -> object:
    if not isinstance(body, str) or body not in _FLOAT_WORDS:
        raise ValueError(body)
    return float(body)


def _decode_int(body: Json) -> object:
    return int(cast("str", body), 16)


def _decode_bytes(body: Json) -> object:
    try:
        return base64.b64decode(cast("str", body), validate=True)
    except binascii.Error as error:
        raise ValueError(body) from error


def _decode_text(body: Json) -> object:
    return "".join(part if isinstance(part, str) else chr(part) for part in _items(body))  # pyright: ignore[reportArgumentType]


def _decode_set(body: Json) -> object:
    items = [decode(item) for item in _items(body)]
    try:
        found = set(items)
    except TypeError:
        return items
    return found if len(found) == len(items) else items


def _decode_frozenset(body: Json) -> object:
    found = _decode_set(body)
    return frozenset(found) if isinstance(found, set) else found


def _decode_map(body: Json) -> object:
    pairs = [(decode(key), decode(value)) for key, value in map(_items, _items(body))]
    try:
        found = dict(pairs)
    except TypeError:
        return pairs
    return found if len(found) == len(pairs) else pairs


def _decode_unencodable(body: Json) -> object:
    if not isinstance(body, str):
        raise ValueError(body)
    return Unencodable(body)


def _items(body: Json) -> list[Json]:
    if not isinstance(body, list):
        raise ValueError(body)
    return body


_DECODERS: Mapping[str, Callable[[Json], object]] = {
    "$float": _decode_float,
    "$int": _decode_int,
    "$bytes": _decode_bytes,
    "$text": _decode_text,
    "$tuple": lambda body: tuple(decode(item) for item in _items(body)),
    "$set": _decode_set,
    "$frozenset": _decode_frozenset,
    "$map": _decode_map,
    "$unencodable": _decode_unencodable,
}
