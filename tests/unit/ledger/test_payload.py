"""Payloads and their files give back exactly what was put in, or say what is wrong."""

from dataclasses import replace
from pathlib import Path

import fakes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.ledger.payload import (
    age_spans,
    decode_advantages,
    decode_group,
    encode_advantages,
    encode_group,
)
from parity.ledger.schema import LedgerError
from parity.ledger.segments import (
    SegmentFile,
    digest_of,
    read_record,
    segment_path,
    whole_records,
)
from parity.types import NO_VERSION, Episode, Scored

tokens = st.tuples(
    st.integers(0, 2**40) | st.integers(0, 60_000),
    st.booleans(),
    st.floats(allow_nan=False, allow_subnormal=True) | st.floats(width=32, allow_nan=False),
    st.integers(0, 3),
)


def episode_of(rows: list[tuple[int, bool, float, int]], text: str = "") -> Episode:
    return Episode(
        episode_id="3/1",
        task=fakes.task(3, tokens=()),
        tokens=tuple(row[0] for row in rows),
        loss_mask=tuple(row[1] for row in rows),
        logprobs=tuple(row[2] if row[1] else 0.0 for row in rows),
        versions=tuple(row[3] if row[1] else NO_VERSION for row in rows),
        response=text,
        finish_reason="length",
        reward=Scored(0.0),
    )


groups = st.lists(
    st.tuples(st.lists(tokens, max_size=12), st.text() | st.just("broken \ud800")),
    min_size=1,
    max_size=4,
)


def prompted(episode: Episode, prompt: tuple[int, ...]) -> Episode:
    return replace(
        episode,
        tokens=prompt + episode.tokens,
        loss_mask=(False,) * len(prompt) + episode.loss_mask,
        logprobs=(0.0,) * len(prompt) + episode.logprobs,
        versions=(NO_VERSION,) * len(prompt) + episode.versions,
    )


@given(groups, st.lists(st.integers(0, 2**40), max_size=5).map(tuple), st.sampled_from([0, 1]))
def test_a_group_comes_back_bit_for_bit(rows: list, prompt: tuple[int, ...], begins_with_it: int):
    episodes = [episode_of(*each) for each in rows]
    if begins_with_it:
        episodes = [prompted(episode, prompt) for episode in episodes]
    found = decode_group(encode_group(episodes, prompt=prompt))
    assert len(found) == len(episodes)
    spans = age_spans(episodes)
    for one, episode, span in zip(found, episodes, spans, strict=True):
        for name in ("episode_id", "tokens", "loss_mask", "logprobs", "versions", "response"):
            assert getattr(one, name) == getattr(episode, name), name
        assert [str(x) for x in one.logprobs] == [str(x) for x in episode.logprobs]  # -0.0 too
        assert one.finish_reason == "length"
        sampled = zip(episode.versions, episode.loss_mask, strict=True)
        versions = [version for version, is_on in sampled if is_on]
        assert span == ((min(versions), max(versions)) if versions else (None, None))


def test_a_log_prob_that_is_no_number_is_kept():
    (found,) = decode_group(encode_group([episode_of([(1, True, float("nan"), 0)])]))
    assert found.logprobs[0] != found.logprobs[0]


def test_log_probs_of_an_engine_take_four_bytes_each_and_a_prompt_is_stored_once():
    exact = episode_of([(1, True, -0.5, 0)] * 1000)
    assert len(encode_group([exact])) < 1000 * 7
    assert len(encode_group([episode_of([(1, True, -0.1, 0)] * 1000)])) > 1000 * 9
    prompt = tuple(range(500))
    eight = [prompted(episode_of([(1, True, -0.5, 0)] * 10), prompt)] * 8
    assert len(encode_group(eight, prompt=prompt)) < 500 * 2 + 8 * 110


def test_a_trained_prompt_is_no_shared_prompt():
    episode = episode_of([(5, True, -0.5, 0), (6, True, -0.25, 1)])
    (found,) = decode_group(encode_group([episode], prompt=(5,)))
    assert (found.tokens, found.loss_mask) == (episode.tokens, episode.loss_mask)


def test_advantages_come_back_in_the_order_of_training():
    body = encode_advantages((5, 2), [[0.1, None, -1e-300], [float("inf")]])
    found = decode_advantages(body)
    assert list(found.items()) == [(5, (0.1, None, -1e-300)), (2, (float("inf"),))]


@pytest.mark.parametrize("decode", [decode_group, decode_advantages])
@pytest.mark.parametrize("body", [b"", b"\x05\0\0\0{}", b"\xff" * 40, encode_advantages((), [])])
def test_other_bytes_are_refused(decode, body: bytes):
    if decode is decode_advantages and body == encode_advantages((), []):
        return
    with pytest.raises(LedgerError, match="a payload isn't"):
        decode(body)


def written(dir: Path, bodies: list[bytes]) -> list:
    file = SegmentFile(dir, 1)
    places = [file.append(n, body, digest_of(body)) for n, body in enumerate(bodies, start=1)]
    file.write()
    file.sync()
    file.close()
    return places


def test_records_are_read_by_place_and_in_order(tmp_path: Path):
    bodies = [b"one", b"", b"three" * 1000]
    places = written(tmp_path, bodies)
    assert [read_record(tmp_path, place) for place in places] == bodies
    path = segment_path(tmp_path, 1)
    ends = [place.position + place.size_bytes for place in places]
    assert list(whole_records(path)) == list(zip((1, 2, 3), ends, strict=True))
    assert path.stat().st_size == ends[-1]


def test_a_torn_tail_is_found_at_every_length(tmp_path: Path):
    places = written(tmp_path, [b"first", b"second"])
    path = segment_path(tmp_path, 1)
    data = path.read_bytes()
    for size in range(places[1].position, len(data)):
        path.write_bytes(data[:size])
        assert [end for _, end in whole_records(path)] == [places[1].position]
        assert read_record(tmp_path, places[0]) == b"first"
        with pytest.raises(LedgerError, match="ends inside the record"):
            read_record(tmp_path, places[1])


def test_every_flipped_bit_of_a_record_is_found(tmp_path: Path):
    (place,) = written(tmp_path, [b"payload"])
    path = segment_path(tmp_path, 1)
    data = path.read_bytes()
    number = range(8, 16)  # the event's number isn't under the digest: rows don't use it
    for byte in (n for n in range(len(data)) if n not in number):
        path.write_bytes(data[:byte] + bytes([data[byte] ^ 4]) + data[byte + 1 :])
        with pytest.raises(LedgerError, match=r"isn't what was written|no record begins"):
            read_record(tmp_path, place)


def test_a_file_is_never_written_over(tmp_path: Path):
    written(tmp_path, [b"kept"])
    with pytest.raises(FileExistsError):
        SegmentFile(tmp_path, 1)
