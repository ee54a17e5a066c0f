"""Readings of NVIDIA GPUs through NVML (package nvidia-ml-py).

A GPU in MIG mode gives one board (power, temperature, ECC, throttling: measured once) and one
partition per slice (memory), each with the identity that the driver gives it. NVML counts every
GPU of the machine, whatever the visibility variables say, and starts no device runtime.
"""

from collections.abc import Iterator
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

PACKAGE = "pynvml"
MIG_ON = 1
MILLIWATT = 1000.0
WHOLE_BOARD = "NVML measures it for the whole board"
PER_SLICE = "it is counted per MIG slice"
# Clock event reasons that mean "slower than it could be", by the name of NVML's constant.
# Idle, application clocks, sync boost and display clocks are choices, not throttling.
THROTTLE = {
    "nvmlClocksThrottleReasonSwPowerCap": "power_cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware_slowdown",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "thermal",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "thermal_hardware",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power_brake",
}


class NvmlTelemetry(Telemetry):
    """Reads every NVIDIA GPU of the machine."""

    source = "NVML"
    package = PACKAGE
    remedy = "install parity-rl[nvidia], or the package nvidia-ml-py."

    def __init__(self, library: ModuleType | None = None) -> None:
        """`library` stands in for the package pynvml; nothing is loaded before the first read."""
        self._library = library
        self._is_open = False

    def read(self) -> Snapshot:
        """One reading per GPU; per board and slice where it is in MIG mode."""
        try:
            nvml = self._library or import_module(self.package or PACKAGE)
        except ImportError as error:
            return Snapshot(
                (), f"nvidia-ml-py can't be imported ({error}); install parity-rl[nvidia]"
            )
        self._library = nvml
        try:
            if not self._is_open:
                nvml.nvmlInit()
                self._is_open = True
            return Snapshot(tuple(self._readings(nvml, nvml.nvmlDeviceGetCount())))
        except (nvml.NVMLError, AttributeError, OSError) as error:
            self.close()
            return Snapshot((), f"NVML: {error}")

    def close(self) -> None:
        """Close NVML; a failure to close leaves nothing to be done."""
        if self._is_open and self._library is not None:
            self._is_open = False
            try:
                self._library.nvmlShutdown()
            except (self._library.NVMLError, OSError):
                return

    def _readings(self, nvml: ModuleType, num_gpus: int) -> Iterator[Reading]:
        for index in range(num_gpus):
            asked = Asked((nvml.NVMLError,))
            handle = asked.ask("identity", lambda i=index: nvml.nvmlDeviceGetHandleByIndex(i))
            if handle is None:  # the GPU is lost; the others aren't
                identity = Identity(key=f"gpu{index}", index=index)
                yield Reading(identity=identity, missing=asked.missing)
                continue
            identity = _identity(nvml, handle, index)
            slices = list(_slices(nvml, handle, identity))
            if _is_mig(nvml, handle):
                board = Identity(identity.key, index, "board", None, identity.model, identity.bus)
                yield _board(nvml, handle, board)
                yield from slices
            else:
                yield _device(nvml, handle, identity)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _identity(nvml: ModuleType, handle: object, index: int) -> Identity:
    asked = Asked((nvml.NVMLError,))
    uuid = asked.ask("uuid", lambda: _text(nvml.nvmlDeviceGetUUID(handle)))
    bus = asked.ask("bus", lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    model = asked.ask("model", lambda: _text(nvml.nvmlDeviceGetName(handle)))
    return Identity(key=uuid or bus or f"gpu{index}", index=index, model=model, bus=bus)


def _is_mig(nvml: ModuleType, handle: object) -> bool:
    mode = Asked((nvml.NVMLError,)).ask("mig", lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    return mode == MIG_ON


def _slices(nvml: ModuleType, handle: object, board: Identity) -> Iterator[Reading]:
    """The MIG slices of a GPU; their places may have gaps."""
    if not _is_mig(nvml, handle):
        return
    places = Asked((nvml.NVMLError,)).ask(
        "slices", lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    )
    for place in range(places or 0):
        asked = Asked((nvml.NVMLError,))
        part = asked.ask(
            "identity", lambda p=place: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, p)
        )
        if part is None:
            continue
        uuid = asked.ask("uuid", lambda p=part: _text(nvml.nvmlDeviceGetUUID(p)))
        model = asked.ask("model", lambda p=part: _text(nvml.nvmlDeviceGetName(p)))
        identity = Identity(
            key=uuid or f"{board.key}/{place}",
            index=board.index,
            kind="partition",
            board=board.key,
            model=model or board.model,
            bus=board.bus,
        )
        asked = Asked((nvml.NVMLError,))
        asked.lack(WHOLE_BOARD, "power_w", "temperature_c", "throttle", *ECC)
        used, total = _memory(nvml, part, asked)
        yield Reading(
            identity=identity,
            utilization=_utilization(nvml, part, asked),
            memory_used_bytes=used,
            memory_total_bytes=total,
            missing=asked.missing,
        )


ECC = ("ecc_corrected", "ecc_uncorrected")


def _device(nvml: ModuleType, handle: object, identity: Identity) -> Reading:
    asked = Asked((nvml.NVMLError,))
    used, total = _memory(nvml, handle, asked)
    corrected, uncorrected = _ecc(nvml, handle, asked)
    return Reading(
        identity=identity,
        utilization=_utilization(nvml, handle, asked),
        memory_used_bytes=used,
        memory_total_bytes=total,
        power_w=_power(nvml, handle, asked),
        temperature_c=_temperature(nvml, handle, asked),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        throttle=_throttle(nvml, handle, asked),
        missing=asked.missing,
    )


def _board(nvml: ModuleType, handle: object, identity: Identity) -> Reading:
    asked = Asked((nvml.NVMLError,))
    asked.lack(PER_SLICE, "utilization", "memory_used_bytes", "memory_total_bytes")
    corrected, uncorrected = _ecc(nvml, handle, asked)
    return Reading(
        identity=identity,
        power_w=_power(nvml, handle, asked),
        temperature_c=_temperature(nvml, handle, asked),
        ecc_corrected=corrected,
        ecc_uncorrected=uncorrected,
        throttle=_throttle(nvml, handle, asked),
        missing=asked.missing,
    )


def _utilization(nvml: ModuleType, handle: object, asked: Asked) -> float | None:
    return asked.ask("utilization", lambda: share(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))


def _memory(nvml: ModuleType, handle: object, asked: Asked) -> tuple[int | None, int | None]:
    return (
        asked.ask("memory_used_bytes", lambda: count(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
        asked.ask("memory_total_bytes", lambda: count(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
    )


def _power(nvml: ModuleType, handle: object, asked: Asked) -> float | None:
    return asked.ask("power_w", lambda: watts(nvml.nvmlDeviceGetPowerUsage(handle) / MILLIWATT))


def _temperature(nvml: ModuleType, handle: object, asked: Asked) -> float | None:
    def read() -> float:
        sensor = nvml.NVML_TEMPERATURE_GPU
        try:
            return celsius(nvml.nvmlDeviceGetTemperatureV(handle, sensor))
        except (nvml.NVMLError, AttributeError):  # a driver before 570
            return celsius(nvml.nvmlDeviceGetTemperature(handle, sensor))

    return asked.ask("temperature_c", read)


def _ecc(nvml: ModuleType, handle: object, asked: Asked) -> tuple[int | None, int | None]:
    def errors(kind: int) -> int:
        return count(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))

    return (
        asked.ask(ECC[0], lambda: errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)),
        asked.ask(ECC[1], lambda: errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)),
    )


def _throttle(nvml: ModuleType, handle: object, asked: Asked) -> tuple[str, ...] | None:
    def reasons() -> tuple[str, ...]:
        try:
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        except (nvml.NVMLError, AttributeError):  # the name before driver 535
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return tuple(name for constant, name in THROTTLE.items() if bits & getattr(nvml, constant))

    return asked.ask("throttle", reasons)
