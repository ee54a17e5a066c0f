"""Reward functions that the run tests name by path."""

import os
import signal
import time
from pathlib import Path

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


def hangs_always(answer: Answer) -> float:
    time.sleep(60)
    return 0.0


def freezes(answer: Answer) -> float:
    """As if somebody had stopped the process."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return letters(answer)


def freezes_once(answer: Answer) -> float:
    """Stops the first process that grades, and no later one."""
    flag = Path("frozen-once")
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return letters(answer)
    return freezes(answer)


def fails_on_some(answer: Answer) -> float:
    """Breaks at about a third of the training answers, the same ones every time."""
    if answer.split == "train" and sum(map(ord, answer.response)) % 3 == 0:
        raise RuntimeError("the judge is away")
    return letters(answer)
