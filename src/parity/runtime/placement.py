"""Which process of a run is on which node, and what it asks there: a pure function of the config.

    nodes=2 trainer_ranks=3 engine_replicas=3

    apart       node 0   trainer 0, 1, 2       neighbours stay together, so that trainer ranks
                node 1   engine 0, 1, 2        exchange gradients inside a host where they can
    colocated   node 0   (trainer 0, engine 0), (trainer 1, engine 1)
                node 1   (trainer 2, engine 2)
    mixed       colocated as far as there are both; the ranks or replicas beyond are apart

A *place* is one device with the share of a host's CPUs that goes with it: of one process, or of
a pair that takes turns there (`turns.py`). Of a pair the trainer rank asks Ray for the device and
the engine uses the same one: Ray's fractions of devices don't say which processes of a bundle
meet on one. The CPUs of a place are halved.

Used by `parity config`, which prints the table, and by `runtime/ray/`, which asks a cluster for
it. Invariants: every process is in the table once; a pair is on one node; the numbers of places
of nodes differ by at most one; what a node is asked for is the sum over its processes.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from parity.errors import ConfigError
from parity.runtime.config import PlacementConfig

RoleName = Literal["trainer", "engine"]
GIB = 2**30
_RAY_DIGITS = 10_000  # Ray counts CPUs in ten-thousandths


@dataclass(frozen=True, slots=True)
class Seat:
    """One process: its role, its number within the role, the node and the place it is on."""

    role: RoleName
    index: int
    node: int
    place: int  # processes with the same number take turns on one device
    is_guest: bool = False  # whether the device is asked for by the other process of the place

    @property
    def name(self) -> str:
        """As logs and errors call it."""
        return process_name(self.role, self.index)


def process_name(role: RoleName, index: int) -> str:
    """As logs and errors call a process."""
    return f"{role}-{index}"


@dataclass(frozen=True, slots=True)
class Demand:
    """What one process asks of its node, under Ray's names of resources."""

    cpus: float
    memory_bytes: int = 0
    device: str | None = None  # Ray's resource of the platform; None: it asks for none

    def resources(self) -> dict[str, float]:
        """As Ray takes it."""
        found = {"CPU": self.cpus}
        if self.memory_bytes:
            found["memory"] = float(self.memory_bytes)
        if self.device is not None:
            found[self.device] = 1.0
        return found


@dataclass(frozen=True, slots=True)
class Table:
    """Every process of a run and what it asks."""

    seats: tuple[Seat, ...]
    demand: Demand  # of a process with a place of its own

    @property
    def num_nodes(self) -> int:
        """Hosts that are needed."""
        return 1 + max(seat.node for seat in self.seats)

    @property
    def has_pairs(self) -> bool:
        """Whether some processes share a device."""
        return any(seat.is_guest for seat in self.seats)

    def of(self, role: RoleName) -> tuple[Seat, ...]:
        """The processes of a role, by number."""
        return tuple(seat for seat in self.seats if seat.role == role)

    def on(self, node: int) -> tuple[Seat, ...]:
        """The processes of a node."""
        return tuple(seat for seat in self.seats if seat.node == node)

    def host_of(self, guest: Seat) -> Seat:
        """The process that asks for the device that a guest uses too."""
        assert guest.is_guest, f"{guest.name} asks for a device of its own"
        return next(seat for seat in self.seats if seat.place == guest.place and not seat.is_guest)

    def asked_by(self, seat: Seat) -> Demand:
        """What one process asks."""
        num_sharing = sum(other.place == seat.place for other in self.seats)
        cpus = math.floor(_RAY_DIGITS * self.demand.cpus / num_sharing + 1e-6) / _RAY_DIGITS
        device = None if seat.is_guest else self.demand.device
        return Demand(cpus, self.demand.memory_bytes, device)

    def resources(self, node: int) -> dict[str, float]:
        """What a node is asked for."""
        sums: dict[str, float] = {}
        for seat in self.on(node):
            for name, amount in self.asked_by(seat).resources().items():
                sums[name] = round(sums.get(name, 0.0) + amount, 4)
        return sums

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
        shared = {seat.place for seat in self.seats if seat.is_guest}
        here = self.on(node)
        paired = [_numbers(role, here, shared) for role in ("trainer", "engine")]
        alone = {seat.place for seat in here} - shared
        apart = [_numbers(role, here, alone) for role in ("trainer", "engine")]
        return " + ".join(filter(None, [" with ".join(filter(None, paired)), *apart]))


def _numbers(role: RoleName, seats: Sequence[Seat], places: Set[int]) -> str:
    """`engine 0, 1`: the processes of a role that are on some places; empty for none."""
    found = [str(seat.index) for seat in seats if seat.role == role and seat.place in places]
    return f"{role} {', '.join(found)}" if found else ""


def table(config: PlacementConfig, *, cores: float, device: str | None = None) -> Table:
    """Place the processes.

    Args:
        config: how many there are of each role.
        cores: CPUs of one node, which bound what is asked where the run file leaves it open.
        device: Ray's resource of the platform's devices; None: there are none.

    Raises ConfigError for more nodes than places, and for counts that don't fit the kind.
    """
    places = _places(config)
    if config.nodes > len(places):
        kind = "processes" if config.kind == "apart" else "devices, each of one pair or process,"
        raise ConfigError(
            f"placement.nodes is {config.nodes}, and there are {len(places)} {kind} "
            f"({config.trainer_ranks} trainer ranks, {config.engine_replicas} engine replicas) to "
            f"put there; set placement.nodes to at most {len(places)}."
        )
    seats = tuple(
        Seat(role, index, place * config.nodes // len(places), place, is_guest=number > 0)
        for place, members in enumerate(places)
        for number, (role, index) in enumerate(members)
    )
    fullest = math.ceil(len(places) / config.nodes)
    cpus = config.cpus_per_process or min(1.0, math.floor(1000 * cores / fullest) / 1000)
    memory = int((config.memory_gib_per_process or 0.0) * GIB)
    return Table(seats, Demand(cpus, memory, device))


def _places(config: PlacementConfig) -> list[list[tuple[RoleName, int]]]:
    """The processes of each place, pairs first, then trainer ranks, then engine replicas."""
    ranks, replicas = config.trainer_ranks, config.engine_replicas
    if config.kind == "colocated" and ranks != replicas:
        raise ConfigError(
            f"placement.kind is 'colocated' with {ranks} trainer ranks and {replicas} engine "
            "replicas, and each rank shares its device with one replica; set "
            f"placement.engine_replicas={ranks}, or placement.kind=mixed, which gives the ones "
            "beyond devices of their own."
        )
    if config.kind == "mixed" and ranks == replicas:
        raise ConfigError(
            f"placement.kind is 'mixed' with {ranks} trainer ranks and as many engine replicas, "
            "so that nothing is left to be apart; set placement.kind=colocated, or another "
            "placement.engine_replicas."
        )
    num_pairs = 0 if config.kind == "apart" else min(ranks, replicas)
    return [
        *([("trainer", index), ("engine", index)] for index in range(num_pairs)),
        *([("trainer", index)] for index in range(num_pairs, ranks)),
        *([("engine", index)] for index in range(num_pairs, replicas)),
    ]


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
