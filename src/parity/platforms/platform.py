"""The contract of a platform: one vendor's accelerators behind one set of facts and calls.

Hardware names appear in this folder and nowhere else; other code asks for a capability and never
compares names. A platform object can be made on any machine, because a driver without a device
asks it for facts too: only the device calls need a device, and only they import torch.

A new platform is one subclass and one entry point of the group `parity.platforms`; the contract
suite (`tests/contracts/test_platforms.py`) says whether it is complete. Used by `detect.py`, the
wiring, the runtimes and `parity doctor`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Literal

from parity.errors import UnsupportedError
from parity.platforms.facts import Facts
from parity.platforms.visibility.compose import Rules
from parity.registry import known

if TYPE_CHECKING:
    import torch

    from parity.platforms.ipc import DeviceIpc
    from parity.platforms.telemetry.telemetry import Telemetry

Role = Literal["driver", "trainer", "rollout"]
ROLES: tuple[Role, ...] = ("driver", "trainer", "rollout")


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of one device (of the host on a CPU platform)."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Support:
    """Whether something works here, and why; None where that couldn't be learned."""

    is_supported: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Default:
    """An environment variable that a platform sets for a role, unless the user has set it."""

    name: str
    value: str
    reason: str
    source: str = ""  # who decides: the platform's name, or the variable it is copied from


class Platform(ABC):
    """What the rest of Parity may know about the hardware."""

    # Identity. `precedence` orders platforms that one torch could drive at once: the most specific
    # one wins whatever was imported first (100 a backend added to torch, 50 a build that borrows
    # another's names, 10 an ordinary build, 0 the CPU).
    name: ClassVar[str]  # as users write it: cpu, cuda, rocm, npu
    vendor: ClassVar[str]  # nvidia, amd, huawei, generic
    device_type: ClassVar[str]  # torch device type
    precedence: ClassVar[int]

    # Packages that add the backend to torch, by the name they are imported by. A default build is
    # the one that everybody gets who asks for torch: it says nothing about the machine.
    torch_plugins: ClassVar[tuple[str, ...]]
    is_default_build: ClassVar[bool]

    # Where devices are found without initialising a runtime, best source first.
    smi_tools: ClassVar[tuple[str, ...]]  # keys of `Facts.smi`
    count_sources: ClassVar[tuple[str, ...]]  # keys of `Facts.device_counts`

    # Looked for by `collect.py`, for this platform alone.
    variable_prefixes: ClassVar[tuple[str, ...]]  # environment variables worth knowing
    device_nodes: ClassVar[tuple[str, ...]]  # patterns; nodes are reported, never taken as devices

    # Which variables choose devices, and how the runtime reads them; None: nothing to choose.
    visibility: ClassVar[Rules | None]

    # Collectives: names of torch.distributed backends, the default first.
    collective_backends: ClassVar[tuple[str, ...]]

    # Ray: the resource that an actor asks for; None: only CPUs.
    ray_resource: ClassVar[str | None]

    # Capabilities that don't depend on the device model.
    has_thread_budget: ClassVar[bool]  # CPU threads are the compute, to be split between roles
    has_graph_capture: ClassVar[bool]  # kernels can be recorded once and replayed
    has_bf16_reduce: ClassVar[bool]  # collectives sum bf16

    def __init_subclass__(cls, **options: object) -> None:
        """Refuse a platform that leaves a fact to its parent: no vendor fact comes by accident."""
        super().__init_subclass__(**options)
        missing = sorted({*FACT_NAMES, *FACT_METHODS} - cls.__dict__.keys())
        if missing:
            raise TypeError(
                f"the platform {cls.__qualname__} doesn't say {', '.join(missing)}; every platform"
                " states each of these itself, also where it extends another one."
            )

    # ---- what this platform needs to be chosen -------------------------------------------------

    @classmethod
    @abstractmethod
    def built_for(cls, facts: Facts) -> str | None:
        """What in the torch of this process drives such devices, as in "ROCm 7.2"; else None.

        Pure: reads the build and the installed packages of `facts`, never probes or variables.
        """

    @classmethod
    @abstractmethod
    def remedy(cls) -> str:
        """What to install where torch isn't built for this platform: half a sentence."""

    @classmethod
    @abstractmethod
    def count_devices(cls) -> Mapping[str, int | None]:
        """Devices of this machine by source (`count_sources`), from tables of the kernel driver.

        Never initialises a runtime and never raises: a table that isn't there has no key, and one
        that can't be read is None.
        """

    @classmethod
    @abstractmethod
    def read_versions(cls) -> Mapping[str, str | None]:
        """Versions of the vendor's driver and toolkit, from their files; never raises.

        What isn't installed has no key; None: it is there and couldn't be read.
        """

    @classmethod
    def advice(cls, facts: Facts) -> tuple[str, ...]:
        """Sentences on what in these facts doesn't go together on this platform. Pure."""
        del facts
        return ()

    @property
    def visibility_variables(self) -> tuple[str, ...]:
        """The variables that choose devices, the outer one first."""
        if self.visibility is None:
            return ()
        outer = () if self.visibility.outer is None else (self.visibility.outer,)
        return (*outer, *self.visibility.inner)

    # ---- device calls --------------------------------------------------------------------------

    @property
    @abstractmethod
    def module(self) -> ModuleType | None:
        """`torch.<device>`; None where torch has no such module.

        Raises UnsupportedError where this torch isn't built for the platform.
        """

    @abstractmethod
    def require_usable(self) -> None:
        """Return where this process can compute on the platform.

        May initialise the runtime: called by a process that is about to use a device.
        Raises UnsupportedError with the reason and the way out.
        """

    @abstractmethod
    def device(self, index: int = 0) -> "torch.device":
        """The torch device of a logical index; raises UnsupportedError for one out of range."""

    @abstractmethod
    def current_device(self) -> int:
        """Logical index of the device that this thread uses."""

    @abstractmethod
    def device_count(self) -> int:
        """Devices that this process may use, as the runtime counts them."""

    @abstractmethod
    def set_device(self, index: int) -> None:
        """Use the device of a logical index from now on, in this thread."""

    @abstractmethod
    def synchronize(self, index: int | None = None) -> None:
        """Wait until a device (None: the current one) has finished what was queued."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed every generator of this process, on the host and on every visible device."""

    @abstractmethod
    def set_allocator(self, settings: str) -> None:
        """Apply settings of torch's caching allocator, as in `expandable_segments:True`.

        Raises UnsupportedError where there is none, or where this version can't change it.
        """

    @abstractmethod
    def empty_cache(self) -> None:
        """Give memory that the caching allocator holds and doesn't use back to the device."""

    @abstractmethod
    def memory(self, index: int = 0) -> MemoryInfo:
        """Free and total bytes of a device, other processes included."""

    @abstractmethod
    def capability(self, index: int = 0) -> tuple[int, int] | None:
        """(major, minor) of the device's architecture; None where the vendor counts otherwise."""

    @abstractmethod
    def device_name(self, index: int = 0) -> str:
        """The model of a device, as its vendor names it."""

    @abstractmethod
    def fast_dtypes(self) -> tuple[str, ...]:
        """The dtypes that compute at full speed on every visible device, best first."""

    @abstractmethod
    def has_fp8(self, index: int = 0) -> bool | None:
        """Whether the device multiplies fp8 matrices; None where its model isn't known."""

    def peak_flops(self, device_name: str, dtype: str) -> float | None:
        """Dense FLOP/s of a device model at a dtype, for MFU; None where it isn't known.

        `dtype` is a name of torch (`bfloat16`, `float8_e4m3fn`). Sources are in
        `tables/peak_flops.py`.
        """
        from parity.platforms.tables.peak_flops import peak_flops

        return peak_flops(self.vendor, device_name, dtype)

    # ---- collectives ---------------------------------------------------------------------------

    @property
    def collective_backend(self) -> str:
        """The torch.distributed backend that is used unless another is asked for."""
        return self.collective_backends[0]

    def choose_collective(self, name: str | None = None) -> str:
        """The backend of this name (None: the default).

        Raises UnsupportedError for one that the platform doesn't have or that isn't installed.
        """
        if name is None:
            return self.collective_backend
        if name not in self.collective_backends:
            raise UnsupportedError(
                f"the collective backend {name!r} isn't one of platform {self.name};"
                f" {known(name, self.collective_backends)}"
            )
        if name == FLAGCX:
            _require_package(FLAGCX, "the collective backend flagcx")
        return name

    def collective_module(self) -> ModuleType | None:
        """A module with the vendor's collective library below torch, for weight transfer."""
        return None

    # ---- Ray and the environment of roles ------------------------------------------------------

    def ray_options(self, num_devices: float) -> dict[str, object]:
        """Options for an actor that needs this many devices (0: none)."""
        if self.ray_resource is None or not num_devices:
            return {}
        if self.ray_resource == "GPU":
            return {"num_gpus": num_devices}
        return {"resources": {self.ray_resource: num_devices}}

    @abstractmethod
    def ray_noset_variables(self, ray_version: str | None) -> tuple[str, ...]:
        """Variables that keep Ray from setting the visibility lists of its workers.

        They differ by Ray's version (None: not known, all names that any version reads).
        """

    @abstractmethod
    def defaults(self, role: Role, environment: Mapping[str, str]) -> tuple[Default, ...]:
        """Variables for a process of this role; a value of the user's wins (`environment.py`).

        `environment` is the user's, for values that are copied from another variable.
        """

    # ---- device IPC, profiler, models, telemetry -----------------------------------------------

    @abstractmethod
    def ipc_support(self, facts: Facts) -> Support:
        """Whether a device buffer can be shared with another process of this machine."""

    def ipc(self) -> "DeviceIpc":
        """Acquires and releases shared device buffers; only where `ipc_support` says yes.

        Raises UnsupportedError where the platform has no device IPC.
        """
        raise UnsupportedError(
            f"platform {self.name} has no device IPC; choose a weight transport that goes through"
            " host memory."
        )

    @abstractmethod
    def profiler_range(self, name: str) -> AbstractContextManager[None]:
        """Marks a span in the vendor's profiler; nothing where there is none."""

    @abstractmethod
    def profiler_start(self) -> None:
        """Tell an attached profiler to record; nothing where there is none."""

    @abstractmethod
    def profiler_stop(self) -> None:
        """Tell an attached profiler to stop recording."""

    def patch_model(self, model_type: str) -> tuple[str, ...]:
        """Repair what a model type needs on this platform; says what was changed.

        `model_type` is the name in a Hugging Face configuration. Called once, before loading.
        """
        del model_type
        return ()

    @abstractmethod
    def telemetry(self) -> "Telemetry":
        """Utilisation, memory, power, temperature, ECC and throttling of the devices."""


FLAGCX = "flagcx"
# What every platform states in its own class body; `__init_subclass__` checks it.
FACT_NAMES = tuple(name for name in Platform.__annotations__)
FACT_METHODS = (
    "built_for remedy count_devices read_versions capability fast_dtypes has_fp8"
    " ray_noset_variables defaults ipc_support telemetry"
).split()


def _require_package(name: str, wish: str) -> None:
    """Raises UnsupportedError where a package that a wish needs isn't installed."""
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise UnsupportedError(f"{wish} needs the package {name}, which isn't installed.")
