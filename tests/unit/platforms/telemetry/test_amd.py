"""AMD cards and their partitions are read field by field, and none is counted twice."""

import pytest
from unit.platforms.telemetry.libraries import MIB, AmdSmiError, Card, amdsmi

from parity.platforms.telemetry.amd import AmdTelemetry
from parity.platforms.telemetry.telemetry import FIELDS

REFUSED = AmdSmiError("AMDSMI_STATUS_NOT_SUPPORTED")
ASKED_AS = {
    "activity": ("utilization",),
    "vram": ("memory_used_bytes", "memory_total_bytes"),
    "power": ("power_w",),
    "hotspot": ("temperature_c",),
    "ecc": ("ecc_corrected", "ecc_uncorrected"),
    "violation": ("throttle",),
}


def readings(*cards: Card, **changes: object):
    snapshot = AmdTelemetry(amdsmi(*cards, **changes)).read()
    assert snapshot.problem is None
    return snapshot.readings


def partitions(compute: str, memory: str, number: int = 8) -> list[Card]:
    return [
        Card(f"0000:05:00.{part}", "aff7", part, compute=compute, memory_mode=memory)
        for part in range(number)
    ]


def test_a_whole_card_has_every_field():
    (reading,) = readings(Card("0000:05:00.0", "aff7"))
    assert (reading.identity.key, reading.identity.kind) == ("aff7", "device")
    assert reading.utilization == 0.88
    assert reading.memory_used_bytes == 283 * MIB
    assert (reading.power_w, reading.temperature_c) == (540.0, 55.0)
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (1, 0)
    assert (reading.throttle, reading.missing) == (("power_cap",), {})


@pytest.mark.parametrize("question", ASKED_AS)
def test_each_field_degrades_alone_and_says_why(question: str):
    (reading,) = readings(Card("0000:05:00.0", "aff7", **{question: REFUSED}))
    assert set(reading.missing) == set(ASKED_AS[question])
    for name in FIELDS:
        assert (getattr(reading, name) is None) == (name in ASKED_AS[question])


def test_not_available_is_unknown_and_not_zero():
    (reading,) = readings(
        Card(
            "0000:05:00.0",
            "aff7",
            activity={"gfx_activity": "N/A"},
            power={"socket_power": "N/A"},
            violation={"active_ppt_pwr": "N/A"},
        )
    )
    assert (reading.utilization, reading.power_w, reading.throttle) == (None, None, None)
    assert set(reading.missing) == {"utilization", "power_w", "throttle"}


def test_a_card_without_a_hotspot_sensor_shows_its_edge():
    (reading,) = readings(Card("0000:05:00.0", "aff7", hotspot=REFUSED, edge=41))
    assert reading.temperature_c == 41.0


@pytest.mark.parametrize(
    ("memory", "board_total", "part_total"),
    [("NPS1", 196592 * MIB, None), ("NPS8", None, 196592 * MIB), ("NPS4", None, None)],
)
def test_partitions_have_their_own_identity_and_memory_is_counted_once(
    memory: str, board_total: int | None, part_total: int | None
):
    board, *parts = readings(*partitions("CPX", memory))
    assert (board.identity.kind, board.identity.key) == ("board", "0000:05:00")
    assert len({part.identity.key for part in parts}) == 8
    assert {part.identity.board for part in parts} == {"0000:05:00"}
    assert board.memory_total_bytes == board_total
    assert {part.memory_total_bytes for part in parts} == {part_total}
    assert sum(each.power_w or 0 for each in (board, *parts)) == 540.0


def test_partitions_are_found_by_their_address_where_the_mode_is_unknown():
    cards = [Card(f"0000:05:00.{part}", "aff7", "N/A", compute=REFUSED) for part in range(4)]
    board, *parts = readings(*cards)
    assert board.identity.kind == "board"
    assert len({part.identity.key for part in parts}) == 4


def test_two_whole_cards_are_two_devices():
    found = readings(Card("0000:05:00.0", "aff7"), Card("0000:26:00.0", "bff7"))
    assert [each.identity.key for each in found] == ["aff7", "bff7"]


def test_a_library_that_cannot_start_is_a_problem():
    def start() -> None:
        raise AmdSmiError("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    snapshot = AmdTelemetry(amdsmi(amdsmi_init=start)).read()
    assert snapshot.problem == "AMD SMI: AMDSMI_STATUS_DRIVER_NOT_LOADED"


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(AmdTelemetry, "package", "no_such_amdsmi")
    assert "ROCm" in (AmdTelemetry().read().problem or "")
