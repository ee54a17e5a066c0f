"""Readings of Intel GPUs through `xpu-smi`."""

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
from parity_xpu import tool

MIB = 1024 * 1024
NOT_SHOWN = "xpu-smi shows none for this card"
UTILIZATION = "XPUM_STATS_GPU_UTILIZATION"
MEMORY_USED = "XPUM_STATS_MEMORY_USED"
POWER = "XPUM_STATS_POWER"
TEMPERATURE = "XPUM_STATS_GPU_CORE_TEMPERATURE"


class XpuTelemetry(Telemetry):
    """Reads every Intel GPU of the machine."""

    source = tool.NAME

    def read(self) -> Snapshot:
        """One reading per card; one card that doesn't answer takes no other along."""
        answer = tool.ask("discovery", "-j")
        if answer is None:
            return Snapshot((), f"{tool.NAME} isn't installed here")
        cards = tool.cards(answer)
        if cards is None:
            return Snapshot((), answer.problem)
        return Snapshot(tuple(_reading(card) for card in cards))


def _reading(card: tool.Card) -> Reading:
    answer = tool.ask("stats", "-d", str(card.index), "-j") or tool.Answer(None, "it is gone")
    metrics = tool.Stats.of(answer).metrics
    unknown = answer.problem or NOT_SHOWN
    asked = Asked(())
    asked.lack(NOT_SHOWN, "memory_total_bytes", "ecc_corrected", "ecc_uncorrected", "throttle")

    def figure(name: str) -> float | None:
        return metrics.get(name)

    def utilization() -> float | None:
        return None if (value := figure(UTILIZATION)) is None else share(value)

    def memory() -> int | None:
        return None if (value := figure(MEMORY_USED)) is None else count(value) * MIB

    def power() -> float | None:
        return None if (value := figure(POWER)) is None else watts(value)

    def temperature() -> float | None:
        return None if (value := figure(TEMPERATURE)) is None else celsius(value)

    return Reading(
        identity=Identity(
            key=card.uuid or card.bus or f"xpu{card.index}",
            index=card.index,
            model=card.name,
            bus=card.bus,
        ),
        utilization=asked.ask("utilization", utilization, unknown),
        memory_used_bytes=asked.ask("memory_used_bytes", memory, unknown),
        power_w=asked.ask("power_w", power, unknown),
        temperature_c=asked.ask("temperature_c", temperature, unknown),
        missing=asked.missing,
    )
