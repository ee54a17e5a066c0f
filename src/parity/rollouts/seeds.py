"""The seed of an answer, a function of what the answer is for and of nothing else.

So an episode can be generated again from its place in the run: no generator has to be kept,
and neither the order in which episodes run nor a restart changes what they draw.
"""

import hashlib
import struct

_KEY = struct.Struct("<Qqqqq")
_SEED_MASK = 2**63 - 1
_RUN_MASK = 2**64 - 1


def sampling_seed(seed: int, *, task: int, sibling: int, turn: int = 0, attempt: int = 0) -> int:
    """A seed in [0, 2^63): different keys give independent ones (BLAKE2b of the key).

    Args:
        seed: the run's.
        task: index of the group in the run.
        sibling: which of the group's episodes.
        turn: which request of the episode.
        attempt: how often the request was begun before.
    """
    key = _KEY.pack(seed & _RUN_MASK, task, sibling, turn, attempt)
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "little") & _SEED_MASK
