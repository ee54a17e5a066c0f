"""What is kept of an episode and of a step's advantages, as bytes that are equal if they are.

Layout: size of the header (4 bytes), a JSON header that names every array with its type and
length, the arrays (little-endian) one after another, then the text. Log-probs are stored in
float32 where that is exact, else in float64; masks and versions as runs. Numbers come back
bit for bit.
"""

import json
import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, cast

from parity.ledger.schema import LedgerError
from parity.types import Episode, FinishReason

_SIZE = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class EpisodePayload:
    """An episode as it was sampled; the tuples have L entries each, as in `Episode`."""

    episode_id: str
    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    response: str
    finish_reason: FinishReason


def encode_episode(episode: Episode) -> bytes:
    """The bytes of everything but the reward, which is known only later."""
    token_type, tokens = _packed_tokens(episode.tokens)
    float_type, logprobs = _packed_floats(episode.logprobs)
    text = episode.response.encode("utf-8", "surrogatepass")
    # Written by hand: an encoder of nested values costs more than all the rest. A list of
    # lists of integers is JSON as Python prints it.
    header = (
        f'{{"kind":"episode","id":{_quoted(episode.episode_id)},'
        f'"finish_reason":{_quoted(episode.finish_reason)},'
        f'"tokens":["{token_type}",{len(episode.tokens)}],'
        f'"logprobs":["{float_type}",{len(episode.logprobs)}],'
        f'"loss_mask":{_runs(episode.loss_mask)},"versions":{_runs(episode.versions)}}}'
    )
    return _join(header, tokens, logprobs, text)


def decode_episode(body: bytes) -> EpisodePayload:
    """Undo `encode_episode`; raises LedgerError for other bytes."""
    try:
        header, rest = _split(body, "episode")
        tokens, rest = _take(header["tokens"], rest)
        logprobs, rest = _take(header["logprobs"], rest)
        return EpisodePayload(
            episode_id=str(header["id"]),
            tokens=cast("tuple[int, ...]", tokens),
            loss_mask=tuple(bool(value) for value in _unrolled(header["loss_mask"])),
            logprobs=logprobs,
            versions=tuple(_unrolled(header["versions"])),
            response=bytes(rest).decode("utf-8", "surrogatepass"),
            finish_reason=cast("FinishReason", header["finish_reason"]),
        )
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise LedgerError(
            f"a payload isn't an episode ({type(error).__name__}: {error})"
        ) from error


def encode_advantages(groups: Sequence[int], values: Sequence[Sequence[float | None]]) -> bytes:
    """The bytes of a step: the groups in the order they were trained, and one advantage per
    sibling (None without a reward)."""
    flat = [float("nan") if value is None else value for row in values for value in row]
    header = {
        "kind": "advantages",
        "groups": list(groups),
        "sizes": [len(row) for row in values],
        "values": ["d", len(flat)],
    }
    return _join(json.dumps(header), struct.pack(f"<{len(flat)}d", *flat))


def decode_advantages(body: bytes) -> dict[int, tuple[float | None, ...]]:
    """Group index -> advantage per sibling, in the order of training."""
    try:
        header, rest = _split(body, "advantages")
        numbers, _ = _take(header["values"], rest)
        values = iter([None if math.isnan(value) else value for value in numbers])
        return {
            int(group): tuple(next(values) for _ in range(size))
            for group, size in zip(header["groups"], header["sizes"], strict=True)
        }
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise LedgerError(f"a payload isn't a step ({type(error).__name__}: {error})") from error


def age_span(episode: Episode) -> tuple[int | None, int | None]:
    """The oldest and newest version among the trained tokens; None without any."""
    mask, versions = episode.loss_mask, episode.versions
    first = mask.index(True) if True in mask else len(mask)
    sampled = versions[first:]
    if False in mask[first:]:
        sampled = tuple(v for v, is_on in zip(versions, mask, strict=True) if is_on)
    distinct = set(sampled)  # few versions, many tokens
    return (min(distinct), max(distinct)) if distinct else (None, None)


def _packed_tokens(values: tuple[int, ...]) -> tuple[str, bytes]:
    """Type and bytes, in the narrowest type that holds every value."""
    for kind in ("H", "I"):
        with suppress(struct.error):
            return kind, struct.pack(f"<{len(values)}{kind}", *values)
    return "q", struct.pack(f"<{len(values)}q", *values)


def _packed_floats(values: tuple[float, ...]) -> tuple[str, bytes]:
    """Type and bytes; float32 where every value survives it (a NaN stays float64)."""
    narrow = struct.Struct(f"<{len(values)}f")
    with suppress(OverflowError):
        packed = narrow.pack(*values)
        if narrow.unpack(packed) == values:
            return "f", packed
    return "d", struct.pack(f"<{len(values)}d", *values)


def _runs(values: Sequence[int]) -> list[list[int]]:
    """[value, how often in a row], in order."""
    return [[int(value), len(list(run))] for value, run in groupby(values)]


def _unrolled(runs: Sequence[Sequence[int]]) -> list[int]:
    return list(chain.from_iterable(repeat(value, count) for value, count in runs))


def _join(header: str, *parts: bytes) -> bytes:
    named = header.encode("ascii")
    return b"".join([_SIZE.pack(len(named)), named, *parts])


def _split(body: bytes, kind: str) -> tuple[dict[str, Any], memoryview]:
    (size,) = _SIZE.unpack_from(body)
    header = json.loads(body[_SIZE.size : _SIZE.size + size])
    if header["kind"] != kind:
        raise ValueError(f"it is of kind {header['kind']}")
    return header, memoryview(body)[_SIZE.size + size :]


def _take(described: Sequence[object], rest: memoryview) -> tuple[tuple[float, ...], memoryview]:
    kind, length = described
    numbers = struct.Struct(f"<{length}{kind}")
    return numbers.unpack_from(rest), rest[numbers.size :]
