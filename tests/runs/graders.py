"""Reward functions that the run tests name by path."""

import time

from parity.types import Answer


def letters(answer: Answer) -> float:
    """The share of letters a to m in the response: dense, so that every group has a spread."""
    return sum(character in "abcdefghijklm" for character in answer.response) / 6


def broken(answer: Answer) -> float:
    raise RuntimeError("the judge is away")


def hangs_on_some(answer: Answer) -> float:
    if answer.response and ord(answer.response[0]) % 7 == 0:
        time.sleep(60)
    return letters(answer)
