"""Which replica a request goes to.

The one with the fewest requests in flight; among equals the one that served the fewest tokens.
Requests of one conversation go where the one before them went, whose cache holds their
beginning, as long as that replica has fewer than `slack` requests more than the least busy
one; otherwise the conversation moves to the least busy one. So stickiness alone never makes
the replicas differ by more than `slack` requests.
"""

from collections.abc import Sequence

from parity.engines.pool.replica import Replica

MAX_CONVERSATIONS = 16_384  # remembered; the one that asked longest ago is forgotten first


class Balance:
    """Chooses replicas and remembers where conversations are."""

    def __init__(self, *, slack: int) -> None:
        self._slack = slack
        self._homes: dict[int | str, Replica] = {}  # in the order of the last request

    def choose(self, replicas: Sequence[Replica], conversation: int | str) -> Replica:
        """One of `replicas` (at least one) for the next request of a conversation."""
        chosen = least_busy(replicas)
        home = self._homes.pop(conversation, None)
        if (
            home is not None
            and home in replicas
            and home.in_flight < chosen.in_flight + self._slack
        ):
            chosen = home
        self._homes[conversation] = chosen
        if len(self._homes) > MAX_CONVERSATIONS:
            del self._homes[next(iter(self._homes))]
        return chosen

    def forget(self) -> None:
        """Let every conversation go where there is room, as when a replica has joined."""
        self._homes.clear()


def least_busy(replicas: Sequence[Replica]) -> Replica:
    """Fewest requests in flight, then fewest tokens served, then the first."""
    found, fewest = replicas[0], len(replicas[0].calls)
    for other in replicas:
        count = len(other.calls)
        if count < fewest or (count == fewest and other.tokens_served < found.tokens_served):
            found, fewest = other, count
    return found


def conversation_of(request_id: str, tokens: tuple[int, ...]) -> int | str:
    """What a request belongs to: `12` where its id is `12/3`, else its prompt.

    Rollouts and evaluation number their requests (`request-17`), and the siblings of a group
    have the same prompt. An id with a slash names the conversation of its later turns as well.
    """
    conversation, slash, _ = request_id.partition("/")
    return conversation if slash else hash(tokens)
