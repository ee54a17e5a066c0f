"""A stop string is seen with the token that completes it, however the text is cut into tokens."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.embedded.stops import DecodeText, completes_stop


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(97 + token) for token in tokens)


def utf8_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", errors="replace")


def with_silent_tokens(tokens: Sequence[int]) -> str:
    """Token 0 has no text at all, like a special token that is skipped."""
    return "".join(chr(96 + token) for token in tokens if token > 0)


def first_stop(tokens: Sequence[int], stop: tuple[str, ...], decode: DecodeText) -> int | None:
    for count in range(1, len(tokens) + 1):
        if completes_stop(tokens[:count], stop, decode):
            return count
    return None


@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=60),
    stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
@settings(max_examples=50, deadline=None)
def test_it_agrees_with_a_search_through_the_whole_text(tokens: list[int], stop: list[str]) -> None:
    ends = [letters(tokens).find(text) + len(text) for text in stop if text in letters(tokens)]
    assert first_stop(tokens, tuple(stop), letters) == (min(ends) if ends else None)


def test_a_stop_string_of_many_byte_tokens_is_found() -> None:
    tokens = list(("x" * 50 + "\U0001f600\U0001f600").encode())
    assert first_stop(tokens, ("\U0001f600\U0001f600",), utf8_bytes) == len(tokens)


def test_tokens_without_text_between_the_letters_do_not_hide_a_stop_string() -> None:
    tokens = [3] * 5 + [1] + [0] * 500 + [2]
    assert first_stop(tokens, ("ab",), with_silent_tokens) == len(tokens)


def test_one_long_token_can_complete_a_stop_string_that_began_before_it() -> None:
    words = {1: "a", 2: "b" + " " * 100}
    assert completes_stop([1] * 90 + [2], ("ab",), lambda ids: "".join(words[i] for i in ids))
