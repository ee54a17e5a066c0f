"""What a run file may say about where the parts of a run are placed (no torch or Ray here)."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from parity import checks
from parity.engines.config import RouterConfig

RuntimeName = Literal["inline", "ray"]
PlacementKind = Literal["apart", "colocated", "mixed"]
_RESTARTS = 3


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Which processes a run has under `runtime=ray`, and what each asks of the cluster.

    Devices are numbered pairs first, then those of trainer ranks, then those of engine replicas,
    and cut evenly into `nodes` runs of neighbours. Where the platform has no devices, what is said
    of them holds for shares of the hosts' CPUs.
    """

    # apart: every process has a device of its own. colocated: rank i and replica i take turns on
    # one. mixed: they do as far as there are both; the ranks or replicas beyond have their own.
    kind: PlacementKind = "apart"
    nodes: int = 1  # hosts that the run takes, >= 1
    trainer_ranks: int = 1  # processes that train together, >= 1
    engine_replicas: int = 1  # processes that generate, >= 1
    # Of a process with a device of its own, or of a pair, > 0; null: 1, or an even share of a
    # smaller machine.
    cpus_per_process: float | None = None
    memory_gib_per_process: float | None = None  # asked of Ray, > 0; null: nothing is asked
    start_timeout_s: float = 600.0  # cluster, resources that others still hold, models, > 0
    collective_timeout_s: float = 300.0  # longest wait of a trainer rank for another one, > 0
    # Of each replica that is lost, >= 0; null: 3, or 0 where that can't be.
    engine_restarts: int | None = None
    router: RouterConfig = field(default_factory=RouterConfig)  # where there are several replicas

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, get_args(PlacementKind))
        checks.at_least("nodes", self.nodes, 1)
        checks.at_least("trainer_ranks", self.trainer_ranks, 1)
        checks.at_least("engine_replicas", self.engine_replicas, 1)
        for key in ("cpus_per_process", "memory_gib_per_process"):
            value: float | None = getattr(self, key)
            if value is not None:
                checks.above(key, value, 0.0)
        if self.engine_restarts is not None:
            checks.at_least("engine_restarts", self.engine_restarts, 0)
        checks.above("start_timeout_s", self.start_timeout_s, 0.0)
        checks.above("collective_timeout_s", self.collective_timeout_s, 0.0)

    @property
    def takes_turns(self) -> bool:
        """Whether some engine shares a device with the trainer."""
        return self.kind != "apart"

    @property
    def restarts(self) -> int:
        """How often a replica that is lost is started again; others have to serve meanwhile."""
        if self.engine_replicas == 1 or self.takes_turns:
            return 0
        return _RESTARTS if self.engine_restarts is None else self.engine_restarts
