"""Where a sender and its receivers meet to make a process group, again and again.

    rank 0's process   Meeting(host)              serves a key-value store as long as it lives
    every member       join(address, circle)      once per circle, all at the same time
    who knows          tell_lost(address, ...)    a member died: nobody waits for it any more

A process group can't be joined later or be used after a member died, so each set of members gets a
group of its own: a *circle*, with a name that is never used twice. Used by `runtime/ray/` for
`weights.transport=collective`. Invariant: every wait ends, and says who is missing.

The group is gloo's, over the hosts' memory: it works between any two platforms, and where an
engine shares its device with the sender. The store listens on the given address alone.
"""

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from torch import distributed

from parity.errors import TransferError
from parity.weights.collective import Group
from parity.weights.session.deadline import Deadline

_LOOK_S = 0.02
Address = str  # host:port


@dataclass(frozen=True, slots=True)
class Circle:
    """The members of one group, by rank; the first one sends."""

    name: str
    members: tuple[str, ...]


class Meeting:
    """The store of a run's groups, served by this process."""

    def __init__(self, host: str) -> None:
        """Listen on an address of this host; raises TransferError where it can't be."""
        try:
            listening = socket.create_server((host, 0))
        except OSError as error:
            raise TransferError(
                f"engines can't be met at {host} ({error}); is it an address of trainer rank 0?"
            ) from error
        port = int(listening.getsockname()[1])
        self.address: Address = f"{host}:{port}"
        self._store = distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )


def join(address: Address, circle: Circle, rank: int, *, timeout_s: float) -> Group:
    """Make the group of a circle, together with its other members.

    Raises DeadlineError that names who didn't come, TransferError for one that died.
    """
    store = _store_at(address, circle, timeout_s)
    group = Group(None, store, rank=rank, size=len(circle.members), names=circle.members)
    group.put(f"here/{rank}", {"name": circle.members[rank]})
    deadline = Deadline("meet", timeout_s)
    waiting = list(range(len(circle.members)))
    while True:
        group.check_lost()
        waiting = [other for other in waiting if group.look(f"here/{other}") is None]
        if not waiting:
            break
        deadline.check(", ".join(circle.members[other] for other in waiting))
        time.sleep(_LOOK_S)
    try:
        made = distributed.ProcessGroupGloo(  # pyright: ignore[reportPrivateImportUsage]
            distributed.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
                "group", store
            ),
            rank,
            len(circle.members),
            timedelta(seconds=timeout_s),  # of making it, and of every broadcast
        )
    except RuntimeError as error:
        raise TransferError(
            f"{circle.members[rank]} could not make a process group with "
            f"{', '.join(n for n in circle.members if n != circle.members[rank])} within "
            f"{timeout_s:g} s ({_short(error)}); one of them died, or hosts can't reach each other."
        ) from error
    group.begin(cast("distributed.ProcessGroup", made))  # torch's stubs know no backend as one
    return group


def tell_lost(address: Address, circle: Circle, name: str, *, timeout_s: float) -> None:
    """Let the members of a circle know that one of them died; raises TransferError."""
    store = _store_at(address, circle, timeout_s)
    size = len(circle.members)
    group = Group(None, store, rank=0, size=size, names=circle.members)
    group.put(f"lost/{circle.members.index(name)}", {"name": name})


def _store_at(address: Address, circle: Circle, timeout_s: float) -> distributed.Store:  # pyright: ignore[reportPrivateImportUsage]
    host, _, port = address.rpartition(":")
    try:
        whole = distributed.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            host,
            int(port),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )
    except RuntimeError as error:
        raise TransferError(
            f"the store of trainer rank 0 at {address} can't be reached within {timeout_s:g} s "
            f"({_short(error)}); it died, or a firewall is between the hosts."
        ) from error
    return distributed.PrefixStore(  # pyright: ignore[reportPrivateImportUsage]
        circle.name, whole
    )


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
