"""Reads the value of one visibility variable.

Used by `compose.py`. The vendors' runtimes drop what they don't understand in silence and the
error comes later, from a rank; so a value that isn't a clean list is an error here, and says why.
"""

import re
from collections import Counter
from dataclasses import dataclass

NUMBER = re.compile(r"-?[0-9]{1,9}")
UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")
MAX_IDS = 1024  # more can only be a mistake
NO_DEVICES = "NoDevFiles"  # what batch systems write for a job without devices

Id = int | str  # a number, or a UUID as the vendor writes it


@dataclass(frozen=True, slots=True)
class DeviceList:
    """One variable as it was set, and what it means."""

    variable: str
    value: str  # as set
    ids: tuple[Id, ...]
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.variable}={self.value}"


def read_list(variable: str, value: str, *, hides_after_negative: bool) -> DeviceList:
    """The ids of a value such as `0,2`, `GPU-5f…` or `-1`.

    `hides_after_negative`: a negative number ends the list, as the runtimes of CUDA and HIP read
    it; else it may only stand alone.
    """
    tokens = [token.strip() for token in value.split(",")]
    if len(tokens) > 1 and not tokens[-1] and tokens[-2]:
        tokens.pop()
    if tokens in ([""], [NO_DEVICES]):
        return DeviceList(variable, value, ())
    if errors := _unreadable(variable, value, tokens):
        return DeviceList(variable, value, (), errors=errors)
    ids = [int(token) if NUMBER.fullmatch(token) else token for token in tokens]
    warnings: tuple[str, ...] = ()
    end = next((i for i, each in enumerate(ids) if isinstance(each, int) and each < 0), len(ids))
    if end < len(ids) and len(ids) > 1:
        hidden = ", ".join(str(each) for each in ids[end + 1 :])
        what = f"{variable}={value} has {ids[end]} in it"
        if not hides_after_negative:
            error = f"{what}; write the devices to use, or -1 alone for none."
            return DeviceList(variable, value, (), errors=(error,))
        if hidden:
            warnings = (f"{what}, which hides what follows it ({hidden}); remove that.",)
    ids = ids[:end]
    twice = sorted(str(each) for each, times in Counter(ids).items() if times > 1)
    if twice:
        error = (
            f"{variable}={value} names {', '.join(twice)} more than once, so that the runtime may"
            " see no device at all; name every device once."
        )
        return DeviceList(variable, value, (), warnings, (error,))
    return DeviceList(variable, value, tuple(ids), warnings)


def _unreadable(variable: str, value: str, tokens: list[str]) -> tuple[str, ...]:
    """Why these aren't ids, in one sentence at most."""
    if len(tokens) > MAX_IDS:
        start = f"{variable}={value[:40]}..."
        return (f"{start} names {len(tokens)} devices; at most {MAX_IDS} are possible.",)
    if "" in tokens:
        return (f"{variable}={value} has an empty place between two commas; remove it.",)
    wrong = [t for t in tokens if not NUMBER.fullmatch(t) and not UUID.fullmatch(t)]
    if wrong:
        return (
            f"{variable}={value} has {wrong[0]!r} in it, which is neither a number nor a UUID"
            " (GPU-… or MIG-…); write a list such as 0,1.",
        )
    if len({bool(UUID.fullmatch(token)) for token in tokens}) > 1:
        return (f"{variable}={value} mixes numbers and UUIDs; write one kind.",)
    return ()
