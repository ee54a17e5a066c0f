"""Readings of AMD GPUs through AMD SMI (package amdsmi, of the same version as ROCm).

A card in CPX, DPX or QPX mode is several devices with one power meter and one set of sensors, and
with one or more memories (NPS modes). It gives one board for what is measured once and one
partition for each part; memory is reported where it isn't counted twice. AMD SMI sees every card
of the machine, whatever the visibility variables say, and starts no device runtime.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from parity.platforms.telemetry.telemetry import (
    Asked,
    Identity,
    Reading,
    Snapshot,
    Telemetry,
    celsius,
    count,
    share,
    watts,
)

PACKAGE = "amdsmi"
MIB = 1024 * 1024
WHOLE_MODES = ("SPX", "N/A", "")
WHOLE_BOARD = "AMD SMI measures it for the whole board"
SHARED_MEMORY = "the partitions share memory; it is counted for the board where that can be done"
POWER = ("socket_power", "current_socket_power", "average_socket_power")  # by age of the card
# Violations that mean "slower than it could be", by AMD SMI's name.
THROTTLE = {
    "active_prochot_thrm": "thermal_external",
    "active_ppt_pwr": "power_cap",
    "active_socket_thrm": "thermal",
    "active_vr_thrm": "thermal_regulator",
    "active_hbm_thrm": "thermal_memory",
}
BOARD_FIELDS = (
    "utilization",
    "power_w",
    "temperature_c",
    "ecc_corrected",
    "ecc_uncorrected",
    "throttle",
)
MEMORY_FIELDS = ("memory_used_bytes", "memory_total_bytes")


@dataclass(frozen=True, slots=True)
class _Part:
    """One processor of AMD SMI: a card, or a partition of one."""

    index: int
    handle: object
    bus: str | None
    uuid: str | None
    partition: int | None
    model: str | None
    compute_mode: str | None  # SPX, DPX, QPX, CPX
    memory_mode: str | None  # NPS1, NPS2, NPS4

    @property
    def board(self) -> str:
        """What the partitions of one card share: the PCI address without the function."""
        if self.bus is not None:
            return self.bus.rpartition(".")[0]
        return self.uuid or f"gpu{self.index}"

    @property
    def key(self) -> str:
        number = "" if self.partition is None else f"/{self.partition}"
        return f"{self.uuid or self.bus or f'gpu{self.index}'}{number}"


class AmdTelemetry(Telemetry):
    """Reads every AMD GPU of the machine."""

    source = "AMD SMI"
    package = PACKAGE
    remedy = "install the amdsmi that comes with ROCm (/opt/rocm/share/amd_smi)."

    def __init__(self, library: ModuleType | None = None) -> None:
        """`library` stands in for the package amdsmi; nothing is loaded before the first read."""
        self._library = library
        self._is_open = False

    def read(self) -> Snapshot:
        """One reading per card; per board and partition where it is cut up."""
        try:
            amdsmi = self._library or import_module(self.package or PACKAGE)
        except (ImportError, KeyError, OSError) as error:  # KeyError: without libamd_smi.so
            reason = f"amdsmi can't be loaded ({error}); {self.remedy}"
            return Snapshot((), reason)
        self._library = amdsmi
        try:
            if not self._is_open:
                amdsmi.amdsmi_init()
                self._is_open = True
            parts = [
                _part(amdsmi, *each) for each in enumerate(amdsmi.amdsmi_get_processor_handles())
            ]
            return Snapshot(tuple(_readings(amdsmi, parts)))
        except (amdsmi.AmdSmiException, AttributeError, OSError) as error:
            self.close()
            return Snapshot((), f"AMD SMI: {' '.join(str(error).split())}")

    def close(self) -> None:
        """Close AMD SMI; a failure to close leaves nothing to be done."""
        if self._is_open and self._library is not None:
            self._is_open = False
            try:
                self._library.amdsmi_shut_down()
            except (self._library.AmdSmiException, OSError):
                return


def _known(value: str | None) -> str | None:
    return None if value in ("N/A", "", None) else value


def _part(amdsmi: ModuleType, index: int, handle: object) -> _Part:
    asked = Asked((amdsmi.AmdSmiException,))

    def partition() -> int | None:
        number = amdsmi.amdsmi_get_gpu_kfd_info(handle)["current_partition_id"]
        return number if isinstance(number, int) else None

    return _Part(
        index=index,
        handle=handle,
        bus=_known(asked.ask("bus", lambda: amdsmi.amdsmi_get_gpu_device_bdf(handle))),
        uuid=_known(asked.ask("uuid", lambda: amdsmi.amdsmi_get_gpu_device_uuid(handle))),
        partition=asked.ask("partition", partition),
        model=_known(
            asked.ask("model", lambda: amdsmi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        ),
        compute_mode=asked.ask("mode", lambda: amdsmi.amdsmi_get_gpu_compute_partition(handle)),
        memory_mode=asked.ask("memory", lambda: amdsmi.amdsmi_get_gpu_memory_partition(handle)),
    )


def _readings(amdsmi: ModuleType, parts: Sequence[_Part]) -> Iterator[Reading]:
    """Every card once; what shares a PCI address is one board, whatever the mode says."""
    boards: dict[str, list[_Part]] = {}
    for part in parts:
        boards.setdefault(part.board, []).append(part)
    for board, members in boards.items():
        mode = members[0].compute_mode
        if len(members) == 1 and (mode is None or mode in WHOLE_MODES):
            identity = Identity(
                key=members[0].uuid or members[0].bus or board,
                index=members[0].index,
                model=members[0].model,
                bus=members[0].bus,
            )
            yield _device(amdsmi, members[0], identity)
        else:
            yield from _cut_up(amdsmi, board, members)


def _cut_up(amdsmi: ModuleType, board: str, members: Sequence[_Part]) -> Iterator[Reading]:
    """A board with its partitions; the first partition answers for the board."""
    first = min(members, key=lambda part: (part.partition or 0, part.index))
    ranges = first.memory_mode.removeprefix("NPS") if first.memory_mode else ""
    asked = Asked((amdsmi.AmdSmiException,))
    used = total = None
    if ranges == "1":
        used, total = _memory(amdsmi, first.handle, asked)
    else:
        asked.lack("it is counted per partition, or can't be divided", *MEMORY_FIELDS)
    corrected, uncorrected = _ecc(amdsmi, first.handle, asked)
    yield Reading(
        identity=Identity(board, first.index, "board", None, first.model, board),
        utilization=_utilization(amdsmi, first.handle, asked),
        memory_used_bytes=used,
        memory_total_bytes=total,
        power_w=_power(amdsmi, first.handle, asked),
        temperature_c=_temperature(amdsmi, first.handle, asked),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        throttle=_throttle(amdsmi, first.handle, asked),
        missing=asked.missing,
    )
    keys = [part.key for part in members]
    for part in members:
        asked = Asked((amdsmi.AmdSmiException,))
        asked.lack(WHOLE_BOARD, *BOARD_FIELDS)
        used = total = None
        if ranges == str(len(members)):  # each partition has a memory of its own
            used, total = _memory(amdsmi, part.handle, asked)
        else:
            asked.lack(SHARED_MEMORY, *MEMORY_FIELDS)
        key = part.key if keys.count(part.key) == 1 else f"{part.key}#{part.index}"
        yield Reading(
            identity=Identity(key, part.index, "partition", board, part.model, part.bus),
            memory_used_bytes=used,
            memory_total_bytes=total,
            missing=asked.missing,
        )


def _device(amdsmi: ModuleType, part: _Part, identity: Identity) -> Reading:
    asked = Asked((amdsmi.AmdSmiException,))
    used, total = _memory(amdsmi, part.handle, asked)
    corrected, uncorrected = _ecc(amdsmi, part.handle, asked)
    return Reading(
        identity=identity,
        utilization=_utilization(amdsmi, part.handle, asked),
        memory_used_bytes=used,
        memory_total_bytes=total,
        power_w=_power(amdsmi, part.handle, asked),
        temperature_c=_temperature(amdsmi, part.handle, asked),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        throttle=_throttle(amdsmi, part.handle, asked),
        missing=asked.missing,
    )


def _figure(answer: Mapping[str, object], *names: str) -> float | None:
    """The first of these that is a number; AMD SMI writes N/A for what it doesn't know."""
    for name in names:
        value = answer.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def _utilization(amdsmi: ModuleType, handle: object, asked: Asked) -> float | None:
    def read() -> float | None:
        percent = _figure(amdsmi.amdsmi_get_gpu_activity(handle), "gfx_activity")
        return None if percent is None else share(percent)

    return asked.ask("utilization", read)


def _memory(amdsmi: ModuleType, handle: object, asked: Asked) -> tuple[int | None, int | None]:
    def size(name: str) -> int | None:
        mib = _figure(amdsmi.amdsmi_get_gpu_vram_usage(handle), name)
        return None if mib is None else count(mib) * MIB

    return (
        asked.ask(MEMORY_FIELDS[0], lambda: size("vram_used")),
        asked.ask(MEMORY_FIELDS[1], lambda: size("vram_total")),
    )


def _power(amdsmi: ModuleType, handle: object, asked: Asked) -> float | None:
    def read() -> float | None:
        value = _figure(amdsmi.amdsmi_get_power_info(handle), *POWER)
        return None if value is None else watts(value)

    return asked.ask("power_w", read)


def _temperature(amdsmi: ModuleType, handle: object, asked: Asked) -> float | None:
    def read() -> float:
        sensors, now = amdsmi.AmdSmiTemperatureType, amdsmi.AmdSmiTemperatureMetric.CURRENT
        try:
            return celsius(amdsmi.amdsmi_get_temp_metric(handle, sensors.HOTSPOT, now))
        except (amdsmi.AmdSmiException, ValueError):  # older cards have the edge sensor only
            return celsius(amdsmi.amdsmi_get_temp_metric(handle, sensors.EDGE, now))

    return asked.ask("temperature_c", read)


def _ecc(amdsmi: ModuleType, handle: object, asked: Asked) -> tuple[int | None, int | None]:
    def errors(name: str) -> int | None:
        value = _figure(amdsmi.amdsmi_get_gpu_total_ecc_count(handle), name)
        return None if value is None else count(value)

    return (
        asked.ask("ecc_corrected", lambda: errors("correctable_count")),
        asked.ask("ecc_uncorrected", lambda: errors("uncorrectable_count")),
    )


def _throttle(amdsmi: ModuleType, handle: object, asked: Asked) -> tuple[str, ...] | None:
    def reasons() -> tuple[str, ...] | None:
        answer = amdsmi.amdsmi_get_violation_status(handle)
        said = {name: answer.get(constant) for constant, name in THROTTLE.items()}
        if not any(isinstance(value, bool) for value in said.values()):
            return None
        return tuple(name for name, value in said.items() if value is True)

    return asked.ask("throttle", reasons)
