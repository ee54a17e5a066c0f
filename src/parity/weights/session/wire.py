"""Control messages as bytes: msgpack maps with checked types; nothing is ever unpickled.

Used by every transport that crosses a process. What doesn't decode to exactly what a message
is, is a TransferError that says so; a message can't grow beyond a bound.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

import msgpack

from parity.errors import TransferError
from parity.weights.content.bucket import Piece
from parity.weights.manifest import Manifest, TensorEntry
from parity.weights.session.canary import Canary

Kind = Literal["hello", "begin", "bucket", "verify", "commit", "abort", "prove", "overwrite"]
Message: TypeAlias = dict[str, object]
T = TypeVar("T")
MAX_BYTES = 256 * 2**20


def encode(message: Mapping[str, object]) -> bytes:
    """A message as bytes."""
    packed = msgpack.packb(message, use_bin_type=True)
    assert packed is not None, "packb without a stream returns bytes"
    return packed


def decode(data: bytes | memoryview) -> Message:
    """A message from bytes; raises TransferError for anything else."""
    if len(data) > MAX_BYTES:
        raise TransferError(f"a control message has {len(data)} bytes; at most {MAX_BYTES}.")
    try:
        found = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise TransferError(f"a control message can't be read ({error}).") from error
    if not isinstance(found, dict):
        raise TransferError(f"a control message is a {type(found).__name__}, not a map.")
    return found


def text(message: Mapping[str, object], key: str) -> str:
    """A text field."""
    return _field(message, key, str)


def integer(message: Mapping[str, object], key: str) -> int:
    """An integer field."""
    return _field(message, key, int)


def number(message: Mapping[str, object], key: str) -> float:
    """A number field."""
    value = message.get(key)
    return float(value) if isinstance(value, int) else _field(message, key, float)


def kind_of(message: Mapping[str, object]) -> Kind:
    """Which message of a sender it is."""
    word = text(message, "kind")
    for known in get_args(Kind):
        if word == known:
            return known
    raise TransferError(f"a sender's message is of the unknown kind {word!r}.")


def pack_pieces(pieces: Sequence[Piece]) -> list[int]:
    """Pieces as one flat list of integers."""
    return [value for p in pieces for value in (p.tensor, p.start, p.count, p.at)]


def unpack_pieces(message: Mapping[str, object]) -> list[Piece]:
    """The pieces of a bucket message."""
    flat = _field(message, "pieces", list)
    if len(flat) % 4 or not all(isinstance(value, int) for value in flat):
        raise TransferError("the pieces of a bucket aren't groups of four integers.")
    return [Piece(*flat[index : index + 4]) for index in range(0, len(flat), 4)]


def pack_manifest(manifest: Manifest) -> Message:
    """A manifest as a map."""
    rows = [[e.name, list(e.shape), e.dtype, e.layout, e.is_buffer] for e in manifest.entries]
    return {
        "version": manifest.version,
        "entries": rows,
        "aliases": [list(pair) for pair in manifest.aliases],
        "skip": list(manifest.skip),
        "skipped": list(manifest.skipped),
    }


def unpack_manifest(message: object) -> Manifest:
    """A manifest from a map; raises TransferError for anything else."""
    try:
        assert isinstance(message, dict)
        return Manifest(
            version=integer(message, "version"),
            entries=tuple(_entry(row) for row in message["entries"]),
            aliases=tuple((_name(alias), _name(name)) for alias, name in message["aliases"]),
            skip=tuple(_name(pattern) for pattern in message["skip"]),
            skipped=tuple(_name(name) for name in message["skipped"]),
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise TransferError(f"a manifest can't be read ({error!r}).") from error


def pack_canary(canary: Canary | None) -> list[object] | None:
    """A canary as a list."""
    if canary is None:
        return None
    return [list(canary.tokens), list(canary.logprobs), canary.tolerance]


def unpack_canary(value: object) -> Canary | None:
    """A canary from a list; raises TransferError for anything else."""
    if value is None:
        return None
    try:
        tokens, logprobs, tolerance = value  # pyright: ignore[reportGeneralTypeIssues]
        numbers = tuple(float(each) for each in logprobs)
        return Canary(tuple(int(each) for each in tokens), numbers, float(tolerance))
    except (TypeError, ValueError) as error:
        raise TransferError(f"a canary can't be read ({error}).") from error


def digests_of(message: Mapping[str, object], key: str = "digests") -> dict[str, str] | None:
    """The digests that a message carries; None where it has none."""
    value = message.get(key)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TransferError(f"{key} of a control message is a {type(value).__name__}.")
    return {_name(name): _name(digest) for name, digest in value.items()}


def _entry(row: "Sequence[object]") -> TensorEntry:
    name, shape, dtype, layout, is_buffer = row
    assert isinstance(shape, list), "the shape is no list"
    assert all(isinstance(size, int) and size >= 0 for size in shape), f"shape {shape}"
    sizes = tuple(int(size) for size in shape)
    return TensorEntry(_name(name), sizes, _name(dtype), _name(layout), bool(is_buffer))


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} isn't text")
    return value


def _field(message: Mapping[str, object], key: str, kind: type[T]) -> T:
    value = message.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TransferError(
            f"{key} of a control message is {value!r}; it must be of type {kind.__name__}."
        )
    return value
