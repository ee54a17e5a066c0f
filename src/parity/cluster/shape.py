"""How large the nodes of a run's cluster must be: a pure function of the config.

Used by `slurm.py` and `kuberay.py`. All nodes are alike, as batch systems hand them out: each
has what the fullest one needs by the placement table, and the driver with its graders may be on
any of them. Imports neither torch nor Ray; the machine that asks isn't the machine that runs.
"""

import math
from dataclasses import dataclass

from parity.config.schema import SftConfig, TrainConfig
from parity.errors import ConfigError
from parity.platforms.plugins import all_platforms
from parity.registry import known
from parity.runtime.placement import GIB, Table, table

_DRIVER_CPUS = 1  # event loop and ledger; each grader process has a CPU beside it
_ANY_CORES = 1_000_000.0  # so that nothing is shrunk to fit


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster of nodes that are alike."""

    placed: Table
    nodes: int
    cpus: int  # of a node
    devices: int  # of a node; 0: everything computes on the CPU
    device: str | None  # Ray's name of them; None: there are none
    vendor: str  # of the platform
    memory_gib: int | None  # of a node; None: nothing is asked

    @property
    def ray_words(self) -> list[str]:
        """The options of `ray start` that say what a node has."""
        words = [f"--num-cpus={self.cpus}"]
        if self.device is None:
            words.append("--num-gpus=0")
        elif self.device == "GPU":
            words.append(f"--num-gpus={self.devices}")
        else:
            words.append(f'--resources={{"{self.device}": {self.devices}}}')
        return words


def shape_of(
    config: TrainConfig | SftConfig, *, cpus: int | None = None, memory_gib: int | None = None
) -> Shape:
    """The cluster of a run.

    Args:
        config: checked already.
        cpus: of a node; None: what its processes ask, the driver and the graders.
        memory_gib: of a node; None: what its processes ask, or nothing.

    Raises ConfigError where the run needs no cluster, or more than `cpus` and `memory_gib`.
    """
    if isinstance(config, SftConfig) or config.runtime != "ray":
        raise ConfigError(
            "this run is one process (runtime=inline), and there is nothing to place on a cluster;"
            " add runtime=ray to a training run, or call `parity` in a script of your own."
        )
    resource, vendor = _platform(config.platform)
    placed = table(config.placement, cores=cpus or _ANY_CORES, device=resource)
    asked = placed.bundles
    least = math.ceil(max(each["CPU"] for each in asked))
    memory = math.ceil(max(each.get("memory", 0.0) for each in asked) / GIB)
    if cpus is not None and cpus < least:
        raise ConfigError(
            f"--cpus is {cpus}, and the processes of the fullest node ask for {least}; set --cpus"
            f" {least} or more, or a smaller placement.cpus_per_process."
        )
    if memory_gib is not None and memory_gib < memory:
        raise ConfigError(
            f"--memory-gib is {memory_gib}, and the processes of the fullest node ask for {memory};"
            f" set --memory-gib {memory} or more, or a smaller placement.memory_gib_per_process."
        )
    return Shape(
        placed=placed,
        nodes=placed.num_nodes,
        cpus=cpus or least + _DRIVER_CPUS + config.grader.processes,
        devices=0 if resource is None else int(max(each.get(resource, 0) for each in asked)),
        device=resource,
        vendor=vendor,
        memory_gib=memory_gib or memory or None,
    )


def _platform(name: str) -> tuple[str | None, str]:
    """(Ray's name of its devices, vendor) of the platform that a config names."""
    platforms = all_platforms()
    if name == "auto":
        raise ConfigError(
            "platform is 'auto', and this machine needn't be like the nodes of the cluster; say"
            f" what they have, as in platform={next(n for n in platforms if n != 'cpu')};"
            f" known: {', '.join(platforms)}."
        )
    if name not in platforms:
        raise ConfigError(f"platform is {name!r}; {known(name, platforms)}")
    return platforms[name].ray_resource, platforms[name].vendor
