import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import DataError
from parity.tasks.config import FileConfig
from parity.tasks.records import BadRecords, digest, kind, repeated


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "dd", "ee"]), max_size=12),
    st.sampled_from(["length", "letter"]),
)
def test_repeated_ids_are_found_whatever_their_hashes(ids: list[str], key: str) -> None:
    hashes = numpy.array([len(i) if key == "length" else ord(i[0]) for i in ids], numpy.uint64)
    expected = [
        (ids.index(name), place, name) for place, name in enumerate(ids) if ids.index(name) != place
    ]
    assert repeated(hashes, ids.__getitem__) == expected


def test_only_equal_hashes_are_looked_at() -> None:
    def refuse(index: int) -> str:
        raise AssertionError(index)

    assert repeated(numpy.arange(100, dtype=numpy.uint64), refuse) == []
    assert repeated(numpy.empty(0, numpy.uint64), refuse) == []


def test_a_digest_tells_types_apart_and_not_orders() -> None:
    assert digest({"a": 1, "b": None}) == digest({"b": None, "a": 1})
    assert digest({"a": 1}) != digest({"a": "1"})
    assert len(digest({"a": "\ud800"})) == 8


def test_only_the_first_reasons_are_kept() -> None:
    bad = BadRecords(FileConfig(path="f", on_bad="skip", max_bad=8))
    for number in range(8):
        bad.add(f"f:{number}", "bad")
    assert (bad.count, len(bad.reasons)) == (8, 5)
    with pytest.raises(DataError, match=r"more than tasks\.max_bad=8"):
        bad.add("f:9", "bad")


def test_every_kind_of_json_has_a_word() -> None:
    values = [None, True, 1, 0.5, "a", [], {}]
    words = ["null", "true or false", "a number", "a number", "text", "a list", "an object"]
    assert [kind(value) for value in values] == words
