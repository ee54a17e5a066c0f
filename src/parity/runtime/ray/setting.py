"""What the processes of a run are made with, and what each is told; imports no Ray."""

from dataclasses import dataclass
from pathlib import Path

from parity.config import environment
from parity.config.schema import TrainConfig
from parity.config.threads import ThreadPlan
from parity.folder import RunFolder
from parity.platforms import environment as platform_environment
from parity.platforms.decision import Decision
from parity.platforms.platform import Platform
from parity.runtime.placement import Seat
from parity.runtime.ray.opening import Opener, open_embedded


@dataclass(frozen=True, slots=True)
class Role:
    """Who a process is, as the driver says."""

    name: str  # trainer-0, engine-1
    log_path: str
    threads: int  # CPU threads for computing
    seed: int
    has_device: bool  # of the platform; False: it computes on the CPU
    rest_dir: str  # on its own host: where what it puts aside rests, if the device is a CPU
    device_id: str | None = None  # that another role was given and this one uses too, by Ray's name


@dataclass(frozen=True)
class Setting:
    """What all processes of a run are made with."""

    config: TrainConfig
    folder: RunFolder
    platform: Platform
    decision: Decision
    threads: ThreadPlan  # of each process
    opener: Opener = open_embedded

    @property
    def logs_dir(self) -> Path:
        """Where each process keeps its log."""
        return (self.folder.path / "logs").absolute()

    def role(self, seat: Seat, *, device_id: str | None = None) -> Role:
        """Who a process is; `device_id` is the device of a guest."""
        threads = self.threads.trainer if seat.role == "trainer" else self.threads.engine
        return Role(
            name=seat.name,
            log_path=str(self.logs_dir / f"{seat.name}.log"),
            threads=threads,
            seed=self.config.seed,
            has_device=self.platform.ray_resource is not None,
            rest_dir=str(self.folder.path.absolute()),
            device_id=device_id,
        )

    def variables(self, seat: Seat, *, ray_version: str, is_one_host: bool) -> dict[str, str]:
        """The environment of a process, beside what it inherits from its node."""
        found = platform_environment.settings(
            self.platform,
            "trainer" if seat.role == "trainer" else "rollout",
            environment.inherited({}),
            ray_version=ray_version,
            is_under_ray=True,
        )
        own = {"OMP_NUM_THREADS": str(self.role(seat).threads), **self.decision.to_variable()}
        if is_one_host:
            own["GLOO_SOCKET_IFNAME"] = "lo"
        return {**platform_environment.to_set(found), **own}
