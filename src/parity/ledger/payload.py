"""What is kept of a group's episodes and of a step's advantages, as bytes that are equal if they
are.

Layout: size of the header (4 bytes), a JSON header that names every array with its type and
length, the arrays (little-endian) one after another, then the texts. The prompt is stored once,
the rest of the siblings one after another in one array of each kind: a call per array, not per
episode, is what makes this cheap. Log-probs are stored in float32 where that is exact, else in
float64; masks and versions as runs. Numbers come back bit for bit.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, compress, groupby, repeat
from typing import Any, cast

import orjson

from parity.ledger.schema import LedgerError
from parity.types import NO_VERSION, Episode, FinishReason

_SIZE = struct.Struct("<I")
Span = tuple[int | None, int | None]  # oldest and newest version


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


def encode_group(
    episodes: Sequence[Episode | EpisodePayload], *, prompt: tuple[int, ...] = ()
) -> bytes:
    """The bytes of everything but the rewards, which are known only later.

    Args:
        prompt: tokens that all may begin with; stored once where all do, untrained.
    """
    skip = len(prompt) if _is_shared(prompt, episodes) else 0
    tokens = list(chain.from_iterable([each.tokens[skip:] for each in episodes]))
    token_type, packed_tokens = _packed_tokens([*prompt[:skip], *tokens])
    float_type, logprobs = _packed_floats(
        list(chain.from_iterable([each.logprobs[skip:] for each in episodes]))
    )
    text = "".join([each.response for each in episodes]).encode("utf-8", "surrogatepass")
    header = {
        "kind": "group",
        "ids": [each.episode_id for each in episodes],
        "finish_reasons": [each.finish_reason for each in episodes],
        "prompt": skip,
        "lengths": [len(each.tokens) - skip for each in episodes],
        "characters": [len(each.response) for each in episodes],
        "tokens": [token_type, skip + len(tokens)],
        "logprobs": [float_type, len(tokens)],
        "loss_mask": _runs([each.loss_mask[skip:] for each in episodes]),
        "versions": _runs([each.versions[skip:] for each in episodes]),
    }
    return _join(header, packed_tokens, logprobs, text)


def decode_group(body: bytes) -> tuple[EpisodePayload, ...]:
    """Undo `encode_group`; raises LedgerError for other bytes."""
    try:
        header, rest = _split(body, "group")
        tokens, rest = _take(header["tokens"], rest)
        logprobs, rest = _take(header["logprobs"], rest)
        skip, lengths = int(header["prompt"]), [int(length) for length in header["lengths"]]
        masks, versions = _unrolled(header["loss_mask"]), _unrolled(header["versions"])
        num_tokens = sum(lengths)
        text = bytes(rest).decode("utf-8", "surrogatepass")
        if {len(tokens) - skip, len(logprobs), len(masks), len(versions)} != {num_tokens}:
            raise ValueError("its arrays have different lengths")
        if len(text) != sum(header["characters"]):
            raise ValueError("its text has another length")
        found: list[EpisodePayload] = []
        begin = text_begin = 0
        rows = zip(
            header["ids"], header["finish_reasons"], lengths, header["characters"], strict=True
        )
        for name, reason, length, num_characters in rows:
            end, text_end = begin + length, text_begin + num_characters
            found.append(
                EpisodePayload(
                    episode_id=str(name),
                    tokens=cast(
                        "tuple[int, ...]", tokens[:skip] + tokens[skip + begin : skip + end]
                    ),
                    loss_mask=(False,) * skip + tuple(map(bool, masks[begin:end])),
                    logprobs=(0.0,) * skip + logprobs[begin:end],
                    versions=(NO_VERSION,) * skip + tuple(versions[begin:end]),
                    response=text[text_begin:text_end],
                    finish_reason=cast("FinishReason", reason),
                )
            )
            begin, text_begin = end, text_end
        return tuple(found)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise LedgerError(f"a payload isn't a group ({type(error).__name__}: {error})") from error


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
    return _join(header, struct.pack(f"<{len(flat)}d", *flat))


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


def age_spans(episodes: Sequence[Episode]) -> Sequence[Span]:
    """Per episode the oldest and newest version among the trained tokens; None without any."""
    masks = [episode.loss_mask for episode in episodes]
    versions = [episode.versions for episode in episodes]
    distinct = set(compress(chain.from_iterable(versions), chain.from_iterable(masks)))
    if len(distinct) == 1 and all(map(sum, masks)):  # most groups
        return [(version, version) for version in distinct] * len(masks)
    return [_span(set(compress(*one))) for one in zip(versions, masks, strict=True)]


def _span(versions: set[int]) -> Span:
    return (min(versions), max(versions)) if versions else (None, None)


def _is_shared(prompt: tuple[int, ...], episodes: Sequence[Episode | EpisodePayload]) -> bool:
    """Whether all begin with these tokens, unsampled: what is beside such tokens is known."""
    length = len(prompt)
    untrained = (False,) * length
    for each in episodes:
        if each.tokens[:length] != prompt or each.loss_mask[:length] != untrained:
            return False
    return True


def _packed_tokens(values: Sequence[int]) -> tuple[str, bytes]:
    """Type and bytes, in the narrowest type that holds every value."""
    for kind in ("H", "I"):
        with suppress(struct.error):
            return kind, struct.pack(f"<{len(values)}{kind}", *values)
    return "q", struct.pack(f"<{len(values)}q", *values)


def _packed_floats(values: list[float]) -> tuple[str, bytes]:
    """Type and bytes; float32 where every value survives it (a NaN stays float64)."""
    narrow = struct.Struct(f"<{len(values)}f")
    with suppress(OverflowError):
        packed = narrow.pack(*values)
        if list(narrow.unpack(packed)) == values:
            return "f", packed
    return "d", struct.pack(f"<{len(values)}d", *values)


def _runs(parts: list[tuple[int, ...]]) -> list[list[int]]:
    """[value, how often in a row], in order, of all parts one after another."""
    values = list(chain.from_iterable(parts))
    if values and values.count(values[0]) == len(values):  # nearly always
        return [[int(values[0]), len(values)]]
    return [[int(value), len(list(run))] for value, run in groupby(values)]


def _unrolled(runs: Sequence[Sequence[int]]) -> list[int]:
    return list(chain.from_iterable(repeat(value, count) for value, count in runs))


def _join(header: Mapping[str, object], *parts: bytes) -> bytes:
    try:
        named = orjson.dumps(header)
    except TypeError:  # lone surrogates in a name, or a number of more than 64 bits
        named = json.dumps(header).encode("ascii")
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
