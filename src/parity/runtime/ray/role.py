"""The beginning of every process of a run but the driver: its log, platform, threads and seed.

Used by the actors in `trainer.py` and `engine.py`, in their own process. What a role warns of is
in its log file and, through `Relay`, in the driver's log and on its display too.
"""

import functools
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import psutil
import ray
import torch
from ray.actor import ActorHandle

from parity.config import environment
from parity.errors import ConfigError
from parity.platforms.platform import Platform
from parity.platforms.verify import adopt
from parity.runtime.ray.setting import Role

Given = ParamSpec("Given")
Value = TypeVar("Value")
Told = tuple[tuple[int, str, str], ...]  # level, logger, text
Actor = ActorHandle[Any]  # Ray makes its methods at run time
_MOST_TOLD = 50  # between two calls; the log file has them all


@dataclass(frozen=True, slots=True)
class Reply(Generic[Value]):
    """What an actor's method returned, and what the actor warned of since the last reply."""

    value: Value
    told: Told = ()


class Relay(logging.Handler):
    """Keeps warnings until the next reply takes them to the driver."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: list[tuple[int, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record as text."""
        if len(self._told) < _MOST_TOLD:
            self._told.append((record.levelno, record.name, record.getMessage()))

    def take(self) -> Told:
        """What was kept; each record once."""
        told, self._told = tuple(self._told), []
        return told


def tell(name: str, told: Told) -> None:
    """Log in the driver what a role warned of."""
    for level, logger, text in told:
        logging.getLogger(logger).log(level, "%s (%s)", text, name)


class Telling(Protocol):
    """Something with a relay."""

    relay: Relay


Self_ = TypeVar("Self_", bound=Telling)


def telling(
    method: Callable[Concatenate[Self_, Given], Value],
) -> Callable[Concatenate[Self_, Given], Reply[Value]]:
    """Make an actor's method return a `Reply`."""

    @functools.wraps(method)
    def wrapped(self: Self_, *given: Given.args, **named: Given.kwargs) -> Reply[Value]:
        return Reply(method(self, *given, **named), self.relay.take())

    return wrapped


def enter(role: Role) -> tuple[Platform, torch.device, Relay]:
    """Become a role: everything that this process says goes to its own log from now on."""
    relay = _open_log(Path(role.log_path))
    torch.set_num_threads(role.threads)
    _speak_on_cluster_interface()
    platform = adopt(needs_device=True)
    device = platform.device(_device_index(platform, role.device_id) if role.has_device else 0)
    if role.has_device:
        platform.set_device(device.index or 0)
    platform.seed(role.seed)
    logging.getLogger(__name__).info(
        "event=role_began name=%s pid=%d device=%s threads=%d",
        *(role.name, os.getpid(), device, role.threads),
    )
    Path(role.rest_dir).mkdir(parents=True, exist_ok=True)  # another host may not have it yet
    return platform, device, relay


def _open_log(path: Path) -> Relay:
    """Send standard output and error to the file, and the package's log with them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    shown = logging.StreamHandler(os.fdopen(os.dup(2), "w", buffering=1))
    shown.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    relay = Relay()
    root = logging.getLogger("parity")
    root.setLevel(logging.INFO)
    root.handlers[:] = [shown, relay]
    root.propagate = False
    return relay


def _speak_on_cluster_interface() -> None:
    """Let gloo use the interface of this node's address in the cluster, unless it was told one.

    Left alone it takes the one of the host's name, which is loopback on many machines.
    """
    name = interface_of(ray.util.get_node_ip_address())
    if name is not None:
        environment.set_unless_set({"GLOO_SOCKET_IFNAME": name})


def interface_of(address: str) -> str | None:
    """The interface of this host that has the IP address; None: none has, as behind NAT."""
    for name, addresses in psutil.net_if_addrs().items():
        kinds = (socket.AF_INET, socket.AF_INET6)  # of which the latter has a scope after %
        if any(a.family in kinds and a.address.split("%")[0] == address for a in addresses):
            return name
    return None


def _device_index(platform: Platform, device_id: str | None) -> int:
    """The logical index of a device in this process, which sees all of its node.

    `device_id` is Ray's name of it; None: of the one that was given to this process.
    """
    given = given_device(platform) if device_id is None else device_id
    return logical_index(given, environment.first_list(platform.visibility_variables))


def given_device(platform: Platform) -> str:
    """Ray's name of the device that it gave to this process.

    Its place in the node's visibility list, or its number without one.
    """
    assert platform.ray_resource is not None, "a platform without devices gives none"
    ids = ray.get_runtime_context().get_accelerator_ids().get(platform.ray_resource, [])
    if len(ids) != 1:
        raise ConfigError(
            f"Ray gave {len(ids)} devices of {platform.ray_resource} to this process, which needs "
            "one; see `ray status` for what the cluster knows of its devices."
        )
    return str(ids[0])


def logical_index(given: str, visible: list[str] | None) -> int:
    """Where the device `given` by Ray stands among the visible ones (None: all are)."""
    if visible is not None and given in visible:
        return visible.index(given)
    if given.isdecimal() and (visible is None or int(given) < len(visible)):
        return int(given)
    raise ConfigError(
        f"Ray gave device {given!r}, and the visible ones are {visible}; unset the visibility list "
        "of the node, or start Ray under the same one."
    )
