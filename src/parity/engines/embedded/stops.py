"""Finds out whether the newest token of an answer completed a stop string.

Used by the scheduler for the few requests that have stop strings. Only the end of the
answer is decoded, as far back as a stop string can reach.
"""

from collections.abc import Callable, Sequence

DecodeText = Callable[[Sequence[int]], str]


def completes_stop(tokens: Sequence[int], stop: tuple[str, ...], decode: DecodeText) -> bool:
    """Whether the text of `tokens` holds a stop string that the last token completed.

    It is called after every token, so a stop string further back would have been found then.
    A character has at most four bytes and a token at least one, unless it has no text; where
    the window turns out too short for the longest stop string, it is doubled.
    """
    longest = max(len(text) for text in stop)
    window = 4 * longest + 8
    while True:
        text = decode(tokens[-window:])
        if any(string in text for string in stop):
            return True
        if window >= len(tokens) or len(text) - len(decode(tokens[-1:])) >= longest:
            return False
        window *= 2
