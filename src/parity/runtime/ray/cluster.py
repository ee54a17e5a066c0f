"""A Ray cluster for one run: started by it and gone with it, or joined and left as it was.

    RAY_ADDRESS unset   a local cluster in the run's private directory; its processes, sockets and
                        files end with the run, and with the driver's death
    RAY_ADDRESS set     that cluster, in a namespace with the run's id; actors and placement group
                        belong to this driver and end with it

Every wait has a deadline; what a cluster can never give is refused at once, with what was asked
beside what there is. All calls of Ray that start processes come from one thread that lives as
long as the cluster: the kernel ends a local cluster with the thread that started it.
"""

import asyncio
import logging
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

import psutil
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from parity.errors import RoleError, UnsupportedError
from parity.runtime.placement import Seat, Table, unmet
from parity.runtime.ray.role import Actor
from parity.supervise.waits import waiting

Result = TypeVar("Result")
_OBJECT_STORE_BYTES = 512 * 2**20  # of a local cluster; pages are taken when they are used
_LOOK_S = 0.25
_STARTS, _LATE = 3, "timed out during startup"  # Ray gives up on a node of its own after 30 s
_REACH_S = 10.0
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HTTP2_SETTINGS = b"\x04"  # the type of the first frame of a server
_END_S = 15.0  # processes of a local cluster end within it, or are killed
# The longest socket of a session below its folder: /session_<date>_<time>_<pid>/sockets/<name>.
_SESSION_BYTES = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_LONGEST_SOCKET = 107
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an actor without devices keeps the node's list
    "RAY_worker_niceness": "0",  # of a cluster of our own: its processes are the run, not a guest's
}
log = logging.getLogger(__name__)


class Cluster:
    """Where the processes of a run are placed."""

    def __init__(self, name: str, *, address: str | None, private_dir: Path, cores: int) -> None:
        """
        Args:
            name: the run's id: the namespace of its actors.
            address: of a cluster to join; None: start one.
            private_dir: short folder of the run for the files of a cluster of its own.
            cores: CPUs of this host that a cluster of its own offers.
        """
        self._name = name
        self._address = address
        self._session_dir = private_dir / "ray"
        self._cores = cores
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._group: PlacementGroup | None = None
        self._actors: list[Actor] = []
        self._lives: Counter[str] = Counter()  # actors that were started, by seat
        self._is_open = False

    @property
    def is_own(self) -> bool:
        """Whether the cluster was started by this run."""
        return self._address is None

    async def open(self, *, deadline_s: float) -> None:
        """Start or join; raises UnsupportedError where there is no cluster to join."""
        what = "a local Ray cluster" if self.is_own else f"the Ray cluster at {self._address}"
        with waiting("driver", what, deadline_s=deadline_s, limit="placement.start_timeout_s"):
            await self._do(self._open)
        log.info(
            "event=cluster_opened kind=%s namespace=%s nodes=%d",
            *("own" if self.is_own else "joined", self._name, len(self.nodes())),
        )

    def _open(self) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)  # what matters is raised
        if ray.is_initialized():
            raise UnsupportedError(
                "this process is connected to a Ray cluster already; run one Parity run at a time "
                "in a process, or ray.shutdown() first."
            )
        try:
            if self.is_own:
                self._start()
            else:
                reach(str(self._address))
                ray.init(
                    address=self._address,
                    namespace=self._name,
                    log_to_driver=False,
                    configure_logging=False,
                )
        except UnsupportedError:
            raise
        except Exception as error:  # Ray raises plain ones too
            reason = " ".join(str(error).split())[:300]
            raise UnsupportedError(
                f"no Ray cluster could be {'started' if self.is_own else 'joined'} ({reason}); "
                + ("see " + str(self._session_dir) if self.is_own else "is RAY_ADDRESS right?")
            ) from error
        finally:
            self._is_open = True

    def _start(self) -> None:
        if len(str(self._session_dir)) + _SESSION_BYTES > _LONGEST_SOCKET:
            raise UnsupportedError(
                f"{self._session_dir} is too long for Ray's sockets, whose paths may have "
                f"{_LONGEST_SOCKET} bytes; set TMPDIR to a short folder."
            )
        for left in reversed(range(_STARTS)):
            self._session_dir.mkdir(mode=0o700, exist_ok=True)
            try:
                self._start_once()
            except Exception as error:
                if _LATE not in str(error) or not left:
                    raise
                log.warning("event=cluster_start_again starts_left=%d reason=%s", left, error)
                _end(_processes_of(self._session_dir))
                shutil.rmtree(self._session_dir, ignore_errors=True)
            else:
                return

    def _start_once(self) -> None:
        ray.init(
            address="local",
            num_cpus=self._cores,
            namespace=self._name,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=str(self._session_dir),
            _node_ip_address="127.0.0.1",
        )

    def nodes(self) -> list[dict[str, float]]:
        """The resources of every living node."""
        return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]

    async def reserve(self, table: Table, *, deadline_s: float) -> None:
        """Get a placement group with one bundle per node of the table.

        Raises UnsupportedError at once where the cluster can never hold it, RoleError where others
        hold what it needs until the deadline.
        """
        fault = unmet(table.bundles, self.nodes())
        if fault is not None:
            raise UnsupportedError(
                f"the Ray cluster can't hold this run: {fault}; set placement.trainer_ranks, "
                "placement.engine_replicas, placement.nodes or placement.cpus_per_process, or use "
                "a larger cluster."
            )
        strategy = "STRICT_SPREAD" if table.num_nodes > 1 else "STRICT_PACK"
        self._group = await self._do(
            lambda: placement_group(table.bundles, strategy=strategy, name=f"{self._name}-run")
        )
        end_s = time.monotonic() + deadline_s
        while not await asyncio.to_thread(self._group.wait, _LOOK_S):
            if time.monotonic() > end_s:
                free = ray.available_resources()
                shown = {name: free.get(name, 0.0) for name in table.bundles[0]}
                raise RoleError(
                    f"the Ray cluster didn't give what was asked within {deadline_s:g} s: asked is "
                    f"{table.bundles}, and free is {shown} because others hold the rest; wait for "
                    "them, ask for less, or raise placement.start_timeout_s."
                )

    async def start(
        self,
        kind: type,
        arguments: Sequence[object],
        *,
        seat: Seat,
        table: Table,
        variables: dict[str, str],
    ) -> Actor:
        """Start an actor on its seat; returns at once, its process comes up meanwhile."""
        assert self._group is not None, "reserve comes first"
        asked = table.asked_by(seat).resources()
        options: dict[str, object] = {
            "name": self._name_of(seat),
            "num_cpus": asked.pop("CPU"),
            "memory": asked.pop("memory", None),
            "num_gpus": asked.pop("GPU", None),
            "resources": asked,
            "max_restarts": 0,
            "max_task_retries": 0,
            "runtime_env": {"env_vars": variables},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=seat.node
            ),
        }
        if seat.role == "engine":
            options["max_concurrency"] = 1000
        given = {key: value for key, value in options.items() if value is not None}
        actor = await self._do(
            lambda: cast("Actor", ray.remote(kind).options(**given).remote(*arguments))
        )
        self._actors.append(actor)
        return actor

    def _name_of(self, seat: Seat) -> str:
        """The name of a seat's next actor; Ray keeps that of a dead one taken in this process."""
        self._lives[seat.name] += 1
        life = self._lives[seat.name]
        return seat.name if life == 1 else f"{seat.name}-life-{life}"

    async def close(self) -> None:
        """End the actors, give the placement group back, and end a cluster of our own."""
        if self._is_open:
            with waiting("driver", "the end of the Ray cluster", deadline_s=120.0):
                await self._do(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        self._is_open = False
        started = _processes_of(self._session_dir) if self.is_own else []
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor)
            if self._group is not None:
                remove_placement_group(self._group)
            ray.shutdown()
        if self.is_own:
            _end(started)
            shutil.rmtree(self._session_dir, ignore_errors=True)

    async def _do(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def reach(address: str) -> None:
    """Refuse an address at which no Ray answers; Ray itself would try for many minutes.

    Its servers speak gRPC, so they answer the first words of HTTP/2 at once.

    Raises UnsupportedError.
    """
    if "://" in address:
        raise UnsupportedError(
            f"RAY_ADDRESS is {address!r}, and a run has to be on a host of the cluster itself; "
            "start it there, with RAY_ADDRESS=HOST:PORT of the head."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`: Ray looks for a cluster of this host
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S) as probe:
            probe.sendall(_HTTP2_HELLO)
            answer = probe.recv(9, socket.MSG_WAITALL)
        reason = None if answer[3:4] == _HTTP2_SETTINGS else "what listens there isn't Ray"
    except OSError as error:
        reason = str(error)
    if reason is not None:
        raise UnsupportedError(
            f"no Ray cluster could be joined (nothing of Ray's answers at {address}: {reason}); "
            "start one there, or set RAY_ADDRESS to HOST:PORT of its head."
        )


def _processes_of(session_dir: Path) -> list[psutil.Process]:
    """The processes of a cluster of our own: children that name its folder, and what is below."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        try:
            if str(session_dir) in " ".join(child.cmdline()):
                found += [child, *child.children(recursive=True)]
        except psutil.Error:
            continue
    return found


def _end(processes: Sequence[psutil.Process]) -> None:
    """See to it that none of these is left; Ray ends most of them itself."""
    _, alive = psutil.wait_procs(list(processes), timeout=_END_S)
    for process in alive:
        try:
            log.warning("event=process_killed pid=%d command=%s", process.pid, process.name())
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(alive, timeout=_END_S)
