"""Which process of a run is on which node, and what it asks there: a pure function of the config.

    nodes=2 trainer_ranks=3 engine_replicas=3

    node 0   trainer 0, 1, 2          neighbours stay together, so that trainer ranks
    node 1   engine 0, 1, 2           exchange gradients inside a host as far as they can

Used by `parity config`, which prints the table, and by `runtime/ray/`, which asks a cluster for
it. Invariants: every process is in the table once; node sizes differ by at most one; what a
node is asked for is the sum over its processes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from parity.errors import ConfigError, UnsupportedError
from parity.runtime.config import PlacementConfig

RoleName = Literal["trainer", "engine"]
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Seat:
    """One process: its role, its number within the role, and the node it is on."""

    role: RoleName
    index: int
    node: int

    @property
    def name(self) -> str:
        """As logs and errors call it."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Demand:
    """What one process asks of its node, under Ray's names of resources."""

    cpus: float
    memory_bytes: int = 0
    device: str | None = None  # Ray's resource of the platform; None: it computes on the CPU

    def resources(self, count: int = 1) -> dict[str, float]:
        """For `count` processes."""
        found = {"CPU": round(count * self.cpus, 4)}
        if self.memory_bytes:
            found["memory"] = float(count * self.memory_bytes)
        if self.device is not None:
            found[self.device] = float(count)
        return found


@dataclass(frozen=True, slots=True)
class Table:
    """Every process of a run and what it asks."""

    seats: tuple[Seat, ...]
    demand: Demand

    @property
    def num_nodes(self) -> int:
        """Hosts that are needed."""
        return 1 + max(seat.node for seat in self.seats)

    def of(self, role: RoleName) -> tuple[Seat, ...]:
        """The processes of a role, by number."""
        return tuple(seat for seat in self.seats if seat.role == role)

    def on(self, node: int) -> tuple[Seat, ...]:
        """The processes of a node."""
        return tuple(seat for seat in self.seats if seat.node == node)

    def resources(self, node: int) -> dict[str, float]:
        """What a node is asked for."""
        return self.demand.resources(len(self.on(node)))

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What is asked, by node."""
        return [self.resources(node) for node in range(self.num_nodes)]

    def lines(self) -> list[str]:
        """One line per node: which processes, and what they ask together."""
        return [
            f"node {n}: {self._names(n)}; {show(self.resources(n))}" for n in range(self.num_nodes)
        ]

    def _names(self, node: int) -> str:
        said: list[str] = []
        for role in ("trainer", "engine"):
            numbers = [str(seat.index) for seat in self.on(node) if seat.role == role]
            if numbers:
                said.append(f"{role} {', '.join(numbers)}")
        return " + ".join(said)


def table(config: PlacementConfig, *, cores: float, device: str | None = None) -> Table:
    """Place the processes.

    Args:
        config: how many there are of each role.
        cores: CPUs of one node, which bound what is asked where the run file leaves it open.
        device: Ray's resource of the platform's devices; None: there are none.

    Raises ConfigError for more nodes than processes, UnsupportedError for a kind that this
    version can't run.
    """
    if config.kind != "apart":
        raise UnsupportedError(
            f"placement.kind is {config.kind!r}, which this version of Parity can't run; set "
            "placement.kind=apart."
        )
    roles: list[tuple[RoleName, int]] = [
        *(("trainer", index) for index in range(config.trainer_ranks)),
        *(("engine", index) for index in range(config.engine_replicas)),
    ]
    if config.nodes > len(roles):
        raise ConfigError(
            f"placement.nodes is {config.nodes}, and there are {len(roles)} processes "
            f"({config.trainer_ranks} trainer ranks, {config.engine_replicas} engine replicas) to "
            f"put there; set placement.nodes to at most {len(roles)}."
        )
    seats = tuple(
        Seat(role, index, position * config.nodes // len(roles))
        for position, (role, index) in enumerate(roles)
    )
    fullest = math.ceil(len(roles) / config.nodes)
    cpus = config.cpus_per_process or min(1.0, math.floor(1000 * cores / fullest) / 1000)
    memory = int((config.memory_gib_per_process or 0.0) * GIB)
    return Table(seats, Demand(cpus, memory, device))


def processes_per_node(config: PlacementConfig) -> tuple[int, int]:
    """Most (trainer ranks, engine replicas) that share the cores of one node."""
    made = table(config, cores=1.0)
    nodes = range(made.num_nodes)
    counts = [
        max(sum(seat.role == role for seat in made.on(node)) for node in nodes)
        for role in ("trainer", "engine")
    ]
    return counts[0], counts[1]


def unmet(
    bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]
) -> str | None:
    """Why these bundles, each on a node of its own, fit on no choice of these nodes; None: they do.

    `nodes` are the resources of each node, whole ones for "ever", free ones for "now".
    """
    if len(bundles) > len(nodes):
        return f"{len(bundles)} nodes are asked for, and the cluster has {len(nodes)}"
    if _fit(bundles, nodes):
        return None
    asked = "; ".join(f"node {n}: {show(bundle)}" for n, bundle in enumerate(bundles))
    names = sorted({name for bundle in bundles for name in bundle})
    there = "; ".join(
        show({name: node.get(name, 0.0) for name in names}) or "nothing" for node in nodes
    )
    return f"asked is {asked}, and available is {there or 'nothing'}"


def _fit(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> bool:
    """Whether every bundle can have a node of its own (bipartite matching by augmenting paths)."""
    taken_by: dict[int, int] = {}

    def take(bundle: int, seen: set[int]) -> bool:
        for number, node in enumerate(nodes):
            if number in seen or not _holds(node, bundles[bundle]):
                continue
            seen.add(number)
            if number not in taken_by or take(taken_by[number], seen):
                taken_by[number] = bundle
                return True
        return False

    return all(take(bundle, set()) for bundle in range(len(bundles)))


def _holds(node: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) + 1e-4 >= amount for name, amount in bundle.items())


def show(resources: Mapping[str, float]) -> str:
    """Resources as people read them: `2 CPU, 2 GPU, 8 GiB memory`."""
    return ", ".join(
        f"{amount / GIB:.3g} GiB memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in resources.items()
    )
