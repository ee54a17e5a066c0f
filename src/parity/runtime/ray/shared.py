"""Folders that several hosts of a run must share, proven before a model is loaded.

    run folder       the driver and every trainer rank: checkpoints, the export
    weights.dir      trainer rank 0 and every engine, where weights travel over `disk`

One process leaves a mark there, the others look for it: a run that learns at its first checkpoint
that a folder isn't shared has wasted its hours. Used by `build.py` in a joined cluster.
"""

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Mapping
from pathlib import Path

import ray

from parity.errors import ConfigError
from parity.runtime.placement import Table
from parity.runtime.ray.calls import Calls
from parity.runtime.ray.cluster import Cluster
from parity.runtime.ray.publication import Way
from parity.runtime.ray.role import Actor
from parity.runtime.ray.setting import Setting

_LOOKS = 10  # a network file system may show a new file late
_LOOK_S = 1.0


async def check_folders(
    cluster: Cluster,
    placed: Table,
    setting: Setting,
    way: Way,
    calls: Calls,
    actors: Mapping[str, Actor],
) -> None:
    """Refuse hosts that don't share what this run needs them to, before a model is loaded."""
    if cluster.is_own:
        return
    ranks = {seat.name: actors[seat.name] for seat in placed.of("trainer")}
    limit_s = setting.config.placement.start_timeout_s
    folder = setting.folder.path.absolute()
    await check_shared(folder, ranks, key="output.dir", calls=calls, deadline_s=limit_s)
    if way.transport == "disk":
        maker = next(iter(ranks))
        await check_shared(
            *(Path(way.path), actors),
            key="weights.dir",
            calls=calls,
            deadline_s=limit_s,
            maker=maker,
        )


async def check_shared(
    folder: Path,
    actors: Mapping[str, Actor],
    *,
    key: str,
    calls: Calls,
    deadline_s: float,
    maker: str | None = None,
) -> None:
    """Refuse a folder that isn't one and the same for these processes.

    Args:
        folder: an absolute path.
        actors: the processes that must see it, by name.
        key: of the run file, where the folder comes from.
        calls: waits for them.
        deadline_s: longest wait for an answer.
        maker: which of them writes there first; None: the driver.

    Raises ConfigError with the processes and hosts that see another folder.
    """
    mark = folder / f".shared-{secrets.token_hex(8)}"
    ask = functools.partial(_ask, calls=calls, deadline_s=deadline_s)
    if maker is None:
        await asyncio.to_thread(_make, mark)
    else:
        await ask({maker: actors[maker]}, functools.partial(_make, mark))
    try:
        blind: dict[str, str] = {}
        for look in range(_LOOKS):
            await asyncio.sleep(_LOOK_S if look else 0)
            seen = await ask(actors, functools.partial(_look, mark))
            blind = {name: host for name, (is_seen, host) in seen.items() if not is_seen}
            if not blind:
                return
    finally:
        if maker is None:
            mark.unlink(missing_ok=True)
        else:
            await ask({maker: actors[maker]}, functools.partial(_remove, mark))
    who = ", ".join(f"{name} on {host}" for name, host in blind.items())
    raise ConfigError(
        f"{folder} isn't shared: what {maker or 'the driver'} writes there isn't seen by {who}; "
        f"set {key} to a folder that all hosts see under the same path."
    )


async def _ask(
    actors: Mapping[str, Actor],
    work: "functools.partial[object]",
    *,
    calls: Calls,
    deadline_s: float,
) -> dict[str, tuple[bool, str]]:
    """What some processes found; `work` is done in each of them."""
    return await calls.gather(
        {name: actor.__ray_call__.remote(_Without(work)) for name, actor in actors.items()},
        "look for the folders that hosts share",
        deadline_s=deadline_s,
    )


class _Without:
    """A call that needs nothing of the actor in whose process it is made."""

    def __init__(self, work: "functools.partial[object]") -> None:
        self._work = work

    def __call__(self, actor: object) -> object:
        """Do it."""
        del actor
        return self._work()


def _make(mark: Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _look(mark: Path) -> tuple[bool, str]:
    """Whether the mark is there, and the address of this host."""
    with contextlib.suppress(OSError):
        list(mark.parent.iterdir())  # a listing asks a network file system anew
    return mark.exists(), ray.util.get_node_ip_address()


def _remove(mark: Path) -> None:
    mark.unlink(missing_ok=True)
