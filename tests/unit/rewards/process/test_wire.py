import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.rewards.answers import answer

from parity.errors import ConfigError, RewardError, UnsupportedError
from parity.rewards.process import wire
from parity.types import GraderFailure, Scored, Unscored

# Adjacent surrogate halves are one character to JSON, hence no high ones here.
TEXT = st.text(st.characters(codec=None, exclude_characters=map(chr, range(0xD800, 0xDC00))))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=50, deadline=None)
@given(TEXT, st.none() | TEXT, st.dictionaries(TEXT, JSON, max_size=3), st.booleans())
def test_answer_arrives_as_it_was_sent_in_one_line(response, expected, columns, is_truncated):
    sent = answer(response, expected, columns=columns, is_truncated=is_truncated, split="eval")
    line = wire.encode_answer(sent)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
    assert wire.decode_answer(line) == sent


@settings(max_examples=50, deadline=None)
@given(
    st.builds(Scored, NUMBER, st.dictionaries(TEXT, NUMBER, max_size=3))
    | st.builds(Unscored, TEXT)
    | st.builds(GraderFailure, TEXT, st.booleans())
)
def test_result_arrives_as_it_was_sent(result):
    line = wire.encode_result(result)
    assert line.count(b"\n") == 1
    assert wire.decode_result(line) == result


def test_nan_in_a_column_is_data_but_in_a_result_an_error():
    sent = answer("1", columns={"x": math.nan})
    assert math.isnan(wire.decode_answer(wire.encode_answer(sent)).columns["x"])
    with pytest.raises(ValueError):
        wire.encode_result(Scored(math.nan))


def test_column_that_is_not_json_is_refused():
    with pytest.raises(TypeError):
        wire.encode_answer(answer("1", columns={"x": object()}))


def test_long_reason_is_cut():
    result = wire.decode_result(wire.encode_result(Unscored("x" * 10**6)))
    assert isinstance(result, Unscored)
    assert len(result.reason) < wire.MAX_REASON_CHARACTERS + 50
    assert result.reason.endswith("(1000000 characters)")


def test_setup_arrives_as_it_was_sent():
    setup = wire.Setup({"name": "exact", "strip": True}, 12, ("/a", "/b\ud800"), None, 7)
    assert wire.decode_setup(wire.encode_setup(setup)) == setup


@pytest.mark.parametrize("error", [ConfigError, UnsupportedError, RewardError])
def test_refusal_arrives_as_the_same_class_of_error(error):
    refused = wire.decode_ready(wire.encode_ready(wire.Refused(error.__name__, "why")))
    assert refused is not None
    assert type(refused.as_error()) is error
    assert str(refused.as_error()) == "why"


def test_readiness_arrives():
    assert wire.decode_ready(wire.encode_ready()) is None
