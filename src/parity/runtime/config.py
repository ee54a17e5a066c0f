"""What a run file may say about where the parts of a run are placed (no torch or Ray here)."""

from dataclasses import dataclass
from typing import Literal, get_args

from parity import checks

RuntimeName = Literal["inline", "ray"]
PlacementKind = Literal["apart", "colocated"]


@dataclass(frozen=True, kw_only=True)
class PlacementConfig:
    """Which processes a run has under `runtime=ray`, and what each asks of the cluster.

    Every process has one device where the platform has any. Processes are numbered trainer
    ranks first, then engine replicas, and cut evenly into `nodes` runs of neighbours.
    """

    kind: PlacementKind = "apart"  # apart: every process has a device of its own
    nodes: int = 1  # hosts that the run takes, >= 1
    trainer_ranks: int = 1  # processes that train together, >= 1
    engine_replicas: int = 1  # processes that generate, >= 1
    cpus_per_process: float | None = None  # > 0; null: 1, or an even share of a smaller machine
    memory_gib_per_process: float | None = None  # asked of Ray, > 0; null: nothing is asked
    start_timeout_s: float = 600.0  # cluster, resources that others still hold, models, > 0
    collective_timeout_s: float = 300.0  # longest wait of a trainer rank for another one, > 0

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, get_args(PlacementKind))
        checks.at_least("nodes", self.nodes, 1)
        checks.at_least("trainer_ranks", self.trainer_ranks, 1)
        checks.at_least("engine_replicas", self.engine_replicas, 1)
        for key in ("cpus_per_process", "memory_gib_per_process"):
            value: float | None = getattr(self, key)
            if value is not None:
                checks.above(key, value, 0.0)
        checks.above("start_timeout_s", self.start_timeout_s, 0.0)
        checks.above("collective_timeout_s", self.collective_timeout_s, 0.0)
