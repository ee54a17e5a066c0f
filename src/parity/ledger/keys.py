"""Sampling seeds as a pure function of what is sampled, so that it can be sampled again.

A seed depends on (run seed, task, sibling, turn, attempt) alone: not on the size of the group,
on timing, or on what was sampled before. One SHAKE-128 call serves all siblings of a group:
sibling n owns bytes 8n to 8n+8 of the output, the same however many follow.
"""

import hashlib
import struct

_DOMAIN = b"parity.sampling.1"
_FIELDS = struct.Struct("<qqqq")
_BITS = 2**63 - 1  # engines take signed 64-bit seeds


def sibling_seeds(
    seed: int, *, task: int, num_siblings: int, turn: int = 0, attempt: int = 0
) -> tuple[int, ...]:
    """The seeds of siblings 0 to num_siblings - 1, each in [0, 2**63).

    Args:
        seed: the run's, any 64-bit integer.
        task: index of the group in the order of issue.
        turn: of the episode, from 0.
        attempt: how often this was tried before, from 0.
    """
    fields = _FIELDS.pack(seed, task, turn, attempt)
    stream = hashlib.shake_128(_DOMAIN + fields).digest(8 * num_siblings)
    return tuple(word & _BITS for word in struct.unpack(f"<{num_siblings}Q", stream))


def sampling_seed(seed: int, *, task: int, sibling: int, turn: int = 0, attempt: int = 0) -> int:
    """The seed of one sibling; equals its place in `sibling_seeds`."""
    return sibling_seeds(seed, task=task, num_siblings=sibling + 1, turn=turn, attempt=attempt)[-1]
