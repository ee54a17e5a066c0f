"""Readings of Ascend NPUs through `npu-smi`, which is asked with a deadline each time.

One call gives the table of all chips, and one more per chip its ECC counts. A card with two chips
shows its power on the first only, which is so reported. npu-smi says nothing of throttling.
"""

import time
from collections.abc import Mapping
from dataclasses import replace

from parity.platforms import smi
from parity.platforms.telemetry import smi_output
from parity.platforms.telemetry.smi_output import NpuRow
from parity.platforms.telemetry.telemetry import (
    Asked,
    Identity,
    Reading,
    Snapshot,
    Telemetry,
    celsius,
    watts,
    within,
)

TOOL = next(tool for tool in smi.TOOLS if tool.name == "npu-smi")
NOT_SHOWN = "npu-smi shows none for this chip"
ECC = ("ecc_corrected", "ecc_uncorrected")


class AscendTelemetry(Telemetry):
    """Reads every Ascend chip of the machine."""

    source = "npu-smi"

    def __init__(
        self,
        *,
        deadline_s: float = smi.DEADLINE_S,
        environment: Mapping[str, str] | None = None,
        tool: smi.Tool = TOOL,
    ) -> None:
        """`deadline_s` bounds one `read`, all calls of the tool together."""
        self._deadline_s = deadline_s
        self._environment = environment
        self._tool = tool

    def read(self) -> Snapshot:
        """One reading per chip."""
        path = smi.find(self._tool, self._environment)
        if path is None:
            return Snapshot((), "npu-smi isn't installed here, or isn't on PATH")
        end = time.monotonic() + self._deadline_s
        ran = self._run(end, str(path), *self._tool.arguments)
        rows = smi_output.npu_rows(ran.text) if ran.status == "ok" else None
        if rows is None:
            return Snapshot((), ran.reason or "npu-smi info printed no table of chips")
        listed = smi_output.npu_devices(ran.text) or ()
        readings = [
            _reading(row, Identity(each.key, each.index, model=row.name or None, bus=row.bus))
            for row, each in zip(rows, listed, strict=True)
        ]
        return Snapshot(
            tuple(
                self._with_ecc(reading, row, str(path), end)
                for reading, row in zip(readings, rows, strict=True)
            )
        )

    def _run(self, end: float, *command: str) -> smi.Ran:
        left_s = end - time.monotonic()
        if left_s <= 0:
            return smi.Ran("timeout", reason="there was no time left to ask")
        return smi.run(command, deadline_s=left_s, environment=self._environment)

    def _with_ecc(self, reading: Reading, row: NpuRow, path: str, end: float) -> Reading:
        words = ("info", "-t", "ecc", "-i", str(row.npu), "-c", str(row.chip))
        ran = self._run(end, path, *words)
        corrected, uncorrected = smi_output.npu_ecc(ran.text)
        reason = ran.reason or NOT_SHOWN
        lacks = {
            name: reason
            for name, value in zip(ECC, (corrected, uncorrected), strict=True)
            if value is None
        }
        return replace(
            reading,
            ecc_corrected=corrected,
            ecc_uncorrected=uncorrected,
            missing={**reading.missing, **lacks},
        )


def _reading(row: NpuRow, identity: Identity) -> Reading:
    asked = Asked(())
    asked.lack("npu-smi doesn't say", "throttle")

    def power() -> float | None:
        return None if row.power_w is None else watts(row.power_w)

    def temperature() -> float | None:
        return None if row.temperature_c is None else celsius(row.temperature_c)

    def utilization() -> float | None:
        return None if row.utilization is None else within(row.utilization, 0.0, 1.0)

    return Reading(
        identity=identity,
        utilization=asked.ask("utilization", utilization, NOT_SHOWN),
        memory_used_bytes=asked.ask("memory_used_bytes", lambda: row.memory_used_bytes, NOT_SHOWN),
        memory_total_bytes=asked.ask(
            "memory_total_bytes", lambda: row.memory_total_bytes, NOT_SHOWN
        ),
        power_w=asked.ask("power_w", power, NOT_SHOWN),
        temperature_c=asked.ask("temperature_c", temperature, NOT_SHOWN),
        missing=asked.missing,
    )
