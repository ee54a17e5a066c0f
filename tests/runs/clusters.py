"""Real Ray clusters for tests, started by `ray start` as a user would, on one host or on two.

A host is a network namespace joined to the other one by a virtual cable that can be pulled. Every
cluster has a token, ports and a folder of its own; what was started is ended by its process id,
and what a test asserts of a cluster is asked of it by a process of its own.
"""

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

START_S = 300  # of a node, on a machine many times slower than this one
END_S = 120
PROGRAMS = Path(sys.executable).parent
_STATE = """
import json, ray
from ray.util.placement_group import placement_group_table
ray.init(log_to_driver=False, configure_logging=False, namespace="looker")
groups = [group["state"] for group in placement_group_table().values()]
print(json.dumps({
    "free": {k: v for k, v in ray.available_resources().items() if k == "CPU"},
    "groups": sum(state != "REMOVED" for state in groups),
    "named": ray.util.list_named_actors(all_namespaces=True),
}))
"""


@dataclass(frozen=True)
class RayCluster:
    """A running cluster: how to speak to it, and what shows its processes."""

    address: str
    variables: dict[str, str]  # of every process that joins it
    folder: Path  # named in the command line of its processes
    prefix: tuple[str, ...] = ()  # words before a command on the head's host

    def run(
        self, *words: str, timeout_s: float = 600, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A command on the head's host, to its end."""
        return subprocess.run(
            [*self.prefix, *words],
            env={**self.variables, **variables},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        """A command on the head's host, begun."""
        return subprocess.Popen(
            [*self.prefix, *words],
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def state(self) -> dict[str, object]:
        """Free CPUs, placement groups and named actors, asked of the cluster."""
        found = self.run(sys.executable, "-c", _STATE, timeout_s=END_S)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout.splitlines()[-1])


def parity(*words: str) -> tuple[str, ...]:
    """The command line of this environment."""
    return (str(PROGRAMS / "parity"), *words)


def variables(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a cluster's processes and of drivers that join it."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        **more,
    }


def free_ports(number: int) -> list[int]:
    """Ports of loopback at which nobody listens now."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def start_node(
    address: str | None,
    *,
    folder: Path,
    host: str,
    cpus: int,
    env: dict[str, str],
    prefix: Sequence[str] = (),
) -> str:
    """`ray start`: a head (None) or a node that joins; the address of the cluster."""
    for left in (2, 1, 0):  # Ray gives a node 30 s, which a busy machine may not keep
        before = {process.pid for process in processes_of(folder)}
        found, told = _start_once(
            address, folder=folder, host=host, cpus=cpus, env=env, prefix=prefix
        )
        if found is not None:
            return found
        assert left and "timed out during startup" in told, told
        end([each for each in processes_of(folder) if each.pid not in before])
    raise AssertionError("the last try fails above")


def _start_once(
    address: str | None,
    *,
    folder: Path,
    host: str,
    cpus: int,
    env: dict[str, str],
    prefix: Sequence[str],
) -> tuple[str | None, str]:
    """The address, or None and what was told of the failure."""
    port, client, agent = free_ports(3)
    role = (
        ["--head", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"]
        if address is None
        else [f"--address={address}"]
    )
    if address is None:
        role.append(f"--ray-client-server-port={client}")
    words = [
        *(*prefix, str(PROGRAMS / "ray"), "start", *role, f"--node-ip-address={host}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--num-cpus={cpus}"),
        *("--object-store-memory=134217728", "--disable-usage-stats"),
    ]
    log = folder / f"start-{secrets.token_hex(2)}.log"  # a pipe would be kept by its processes
    with log.open("w") as file:
        ended = subprocess.run(
            words, env=env, stdout=file, stderr=file, timeout=START_S, check=False
        )
    return (address or f"{host}:{port}") if ended.returncode == 0 else None, log.read_text()


def wait_until(is_so: Callable[[], bool], what: str, *, within_s: float) -> float:
    """Seconds until something is so; fails where it isn't in time."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + within_s, f"{what}: not within {within_s:g} s"
        time.sleep(0.1)
    return time.monotonic() - began


def processes_of(folder: Path) -> list[psutil.Process]:
    """The processes that name a folder in their command line, and what is below them."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and str(folder) in " ".join(process.cmdline()):
                below = process.children(recursive=True)
                found |= {each.pid: each for each in (process, *below)}
    return list(found.values())


def end(processes: Sequence[psutil.Process]) -> None:
    """Kill processes that a test has started."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(processes), timeout=END_S)


@contextlib.contextmanager
def short_folder() -> Generator[Path]:
    """A folder whose path leaves room for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="p", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def one_host(*, cpus: int) -> Generator[RayCluster]:
    """A cluster on loopback that other programs may use too."""
    with short_folder() as folder:
        env = variables(folder)
        try:
            address = start_node(None, folder=folder, host="127.0.0.1", cpus=cpus, env=env)
            yield RayCluster(address, {**env, "RAY_ADDRESS": address}, folder)
        finally:
            end(processes_of(folder))


@functools.cache
def why_no_hosts() -> str | None:
    """Why network namespaces can't be made here; None: they can."""
    return why_no_namespaces(is_root=os.geteuid() == 0, ip=shutil.which("ip"))


def why_no_namespaces(*, is_root: bool, ip: str | None) -> str | None:
    """The reason in words, after trying where nothing speaks against it."""
    if not is_root:
        return "making network namespaces needs root"
    if ip is None:
        return "making network namespaces needs `ip` (iproute2)"
    name = f"parity-try-{os.getpid()}"
    tried = subprocess.run([ip, "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"this kernel or container refuses network namespaces ({tried.stderr.strip()})"
    pair = [ip, "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1"]
    linked = subprocess.run(pair, capture_output=True, text=True, check=False)
    subprocess.run([ip, "netns", "del", name], check=True)
    if linked.returncode != 0:
        return f"this kernel has no virtual network cables ({linked.stderr.strip()})"
    return None


class Hosts:
    """Two network namespaces with a cable between them; `close` removes all that is in them."""

    addresses = ("198.18.7.1", "198.18.7.2")  # of the range for tests; nobody else's in there

    def __init__(self) -> None:
        mark = f"{os.getpid()}-{secrets.token_hex(2)}"
        self.names = (f"parity-{mark}-a", f"parity-{mark}-b")
        try:
            for name in self.names:
                _ip("netns", "add", name)
            near, far = self.names
            _ip(*f"-n {near} link add eth0 type veth peer name eth0 netns {far}".split())
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise

    def prefix(self, number: int) -> tuple[str, ...]:
        """Words before a command that runs it on a host."""
        return ("ip", "netns", "exec", self.names[number])

    def pids(self, number: int) -> set[int]:
        """The processes on a host."""
        return {int(pid) for pid in _ip("netns", "pids", self.names[number]).split()}

    def cut(self) -> None:
        """Pull the cable at the far host: what the near one sends is lost without a word."""
        _ip("-n", self.names[1], "link", "set", "eth0", "down")

    def mend(self) -> None:
        """Put it back."""
        _ip("-n", self.names[1], "link", "set", "eth0", "up")

    def close(self) -> None:
        """Kill every process on the hosts and remove them."""
        there = _ip("netns", "list").split()
        for name in self.names:
            if name not in there:
                continue
            for pid in _ip("netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)


@contextlib.contextmanager
def two_hosts(*, cpus: int, unshared: Path) -> Generator[tuple[Hosts, RayCluster]]:
    """A cluster of two hosts; the folder `unshared` is another one on the far host."""
    with short_folder() as folder, contextlib.closing(Hosts()) as hosts:
        env = variables(folder)
        near, far = hosts.addresses
        unshared.mkdir()
        start = functools.partial(start_node, folder=folder, cpus=cpus, env=env)
        address = start(None, host=near, prefix=hosts.prefix(0))
        # `ip netns exec` gives its command mounts of its own.
        mounted = ("sh", "-c", f'mount -t tmpfs none {unshared} && exec "$@"', "sh")
        start(address, host=far, prefix=(*hosts.prefix(1), *mounted))
        joined = {**env, "RAY_ADDRESS": address}
        yield hosts, RayCluster(address, joined, folder, hosts.prefix(0))


def _ip(*words: str) -> str:
    found = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"ip {' '.join(words)}: {found.stderr}"
    return found.stdout
