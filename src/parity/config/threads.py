"""How many CPU threads each role gets; decided once, before anything computes.

Threads that fight for a core cost more than they give: two roles with two threads each on two
cores lose half the throughput of one and one. So the roles of an asynchronous run share the
cores, and those of a synchronous run, which alternate, get all of them. A number that the user
set always wins, and is of each process of the role. Used by the wiring and by `parity config`.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """CPU threads of each process of a role, and why."""

    trainer: int
    engine: int
    reason: str


def plan(
    cores: int,
    max_lag: float,
    trainer: int | None,
    engine: int | None,
    environment: int | None,
    *,
    ranks: int = 1,
    replicas: int = 1,
) -> ThreadPlan:
    """Share `cores` between the roles.

    `trainer` and `engine` are the user's numbers (None: choose), `environment` is
    OMP_NUM_THREADS, which bounds what is chosen for a process. `ranks` and `replicas` are the
    trainer ranks and engine replicas that share these cores.
    """
    assert cores >= 1, f"cores is {cores}"
    if max_lag == 0:
        chosen_trainer, chosen_engine = cores, cores
        why = f"synchronous: the roles take turns on {cores} cores"
    elif cores == 1:
        chosen_trainer, chosen_engine = 1, 1
        why = "asynchronous on one core: the roles share it"
    else:
        chosen_engine = cores // 2
        chosen_trainer = cores - chosen_engine
        why = f"asynchronous: the roles split {cores} cores"
    reasons = [why]
    for role, count in (("trainer ranks", ranks), ("engine replicas", replicas)):
        if count > 1:
            reasons.append(f"shared by {count} {role}")
    chosen_trainer, chosen_engine = (
        max(1, chosen_trainer // ranks),
        max(1, chosen_engine // replicas),
    )
    if environment is not None:
        bounded = min(chosen_trainer, environment), min(chosen_engine, environment)
        if bounded != (chosen_trainer, chosen_engine):
            reasons.append(f"OMP_NUM_THREADS={environment} bounds each process")
        chosen_trainer, chosen_engine = bounded
    for role, wish in (("trainer", trainer), ("engine", engine)):
        if wish is not None:
            reasons.append(f"threads.{role}={wish} was set")
    result_trainer = chosen_trainer if trainer is None else trainer
    result_engine = chosen_engine if engine is None else engine
    both = (ranks * result_trainer, replicas * result_engine)
    at_once = max(both) if max_lag == 0 else sum(both)
    if at_once > max(cores, 2 if max_lag > 0 else 1):
        reasons.append(
            f"warning: {at_once} threads would compute at once on {cores} cores,"
            " which is slower than one thread per core"
        )
    return ThreadPlan(result_trainer, result_engine, "; ".join(reasons))


def usable_cores(affinity: int, limits: list[str]) -> int:
    """Whole cores that this process may use: its affinity, bounded by each cgroup `cpu.max`.

    A limit reads `"QUOTA PERIOD"` in microseconds, or `"max PERIOD"` for none.
    """
    cores = float(affinity)
    for limit in limits:
        words = limit.split()
        if len(words) == 2 and words[0] != "max":
            cores = min(cores, int(words[0]) / int(words[1]))
    return max(1, math.floor(cores))


def read_limits(root: Path = CGROUP_ROOT, membership: Path = SELF_CGROUP) -> list[str]:
    """The `cpu.max` of this process's cgroup (version 2) and of every one above it."""
    if not membership.exists():
        return []
    lines = membership.read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = root / own.lstrip("/")
    folders = [folder, *folder.parents]
    files = [f / "cpu.max" for f in folders if f == root or root in f.parents]
    return [file.read_text() for file in files if file.is_file()]


def available_cores() -> int:
    """Whole cores that this process may use."""
    return usable_cores(len(os.sched_getaffinity(0)), read_limits())
