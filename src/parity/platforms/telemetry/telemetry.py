"""The contract of telemetry: what the devices of this machine say about themselves, right now.

Used by the platforms (`Platform.telemetry`), `monitor.py` and displays. Invariants: unknown is
None and never 0, and `Reading.missing` says why; one field that can't be read takes no other with
it; `read` never raises because of a device; what is measured once for a card that is cut into
partitions is reported once, so that sums over readings are right.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar

Value = TypeVar("Value")
Kind = Literal["device", "board", "partition"]
FIELDS = (
    "utilization",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "temperature_c",
    "ecc_corrected",
    "ecc_uncorrected",
    "throttle",
)
MAX_POWER_W, MAX_TEMPERATURE_C = 20_000.0, 200.0  # above it a figure is a marker of "unknown"
PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Which device a reading is of.

    `device` is a whole card. A card that is cut up (MIG, CPX) gives one `board` for what is
    measured once, and a `partition` for each part.
    """

    key: str  # the same in every process of the machine, and no other reading's
    index: int  # the source's own number of the card
    kind: Kind = "device"
    board: str | None = None  # of a partition: key of its board
    model: str | None = None
    bus: str | None = None  # PCI address


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One moment of one device; None where unknown, and `missing` says why by field."""

    identity: Identity
    utilization: float | None = None  # share of time or cores that computed, 0 to 1
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None  # of the core: the hottest sensor that the source has
    ecc_corrected: int | None = None  # since the driver was started
    ecc_uncorrected: int | None = None
    throttle: tuple[str, ...] | None = None  # why it runs slower than it could; () if it doesn't
    missing: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All readings of one moment; `problem` says why there are none."""

    readings: tuple[Reading, ...]
    problem: str | None = None


class Telemetry(ABC):
    """One source of readings."""

    source: ClassVar[str]  # as users know it: NVML, AMD SMI, npu-smi, psutil
    package: ClassVar[str | None] = None  # what has to be importable, beside Parity itself
    remedy: ClassVar[str] = ""  # how to install it: half a sentence

    @abstractmethod
    def read(self) -> Snapshot:
        """The readings of every device of the machine; may take seconds on a sick device.

        Never raises because of a device, a driver or a library. In a process that must not
        wait, read through `monitor.py`.
        """

    def close(self) -> None:
        """Give the source back, where it holds one; reading again opens it again."""
        return


class Asked:
    """The fields of one reading, asked one by one: a refusal is kept, and takes no other along."""

    def __init__(self, refusals: tuple[type[Exception], ...]) -> None:
        """`refusals`: what the source raises when it can't answer."""
        self._refusals = (*refusals, *SURPRISES)
        self.missing: dict[str, str] = {}

    def ask(self, name: str, call: Callable[[], Value | None], unknown: str = "") -> Value | None:
        """What the call answers; None, with the reason kept, where it refuses or doesn't know."""
        try:
            value = call()
        except self._refusals as error:
            lines = str(error).split("\n")
            self.missing[name] = " ".join(" ".join(lines).split()) or type(error).__name__
            return None
        if value is None:
            self.missing[name] = unknown or "the source doesn't say"
        return value

    def lack(self, reason: str, *names: str) -> None:
        """These fields can't be asked here."""
        self.missing.update(dict.fromkeys(names, reason))


# What a library of another version does: no such function, another form of answer.
SURPRISES = (AttributeError, KeyError, IndexError, TypeError, ValueError, OSError)


def within(value: float, low: float, high: float) -> float:
    """The value, or ValueError where it is a marker of "unknown" instead of a figure."""
    number = float(value)
    if not low <= number <= high:  # NaN too
        raise ValueError(f"the source says {value}, which is outside {low:g} to {high:g}")
    return number


def share(percent: float) -> float:
    """A percentage as a share; ValueError outside 0 to 100."""
    return within(percent, 0.0, PERCENT) / PERCENT


def watts(value: float) -> float:
    """Power; ValueError where no device draws so much."""
    return within(value, 0.0, MAX_POWER_W)


def celsius(value: float) -> float:
    """Temperature of a running device; ValueError for 0 and below, which means no sensor."""
    if value == 0:
        raise ValueError("the source says 0, which means that there is no sensor")
    return within(value, -50.0, MAX_TEMPERATURE_C)


def count(value: float) -> int:
    """A number of events or bytes; ValueError for a negative one or the largest that fits."""
    if value in (2**32 - 1, 2**64 - 1):
        raise ValueError(f"the source says {value}, which means unknown")
    return int(within(value, 0, 2**63))
