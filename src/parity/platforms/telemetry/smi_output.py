"""What the vendors' tools print, read into devices with an identity that is safe for partitions.

One pure function per tool, from text to devices; None means that the text isn't what the tool
prints. Used by `smi.py` and the telemetry. Invariants: no function raises, whatever the text; two
devices of one answer never have the same key, so that the eight partitions of an MI300X in CPX
mode or the slices of a GPU in MIG mode are never taken for one card, and a card that is cut into
MIG slices isn't counted beside them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parity.types import Json

GPU_LINE = re.compile(r"\s*GPU (\d+): (.+?) \(UUID: (\S+)\)\s*")
MIG_LINE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (\S+)\)\s*")
NO_NVIDIA = "No devices found"
CARD = re.compile(r"card(\d+)")
NPU_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:")
BUS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|NA|[x:.]+")
NUMBER = r"(\d+(?:\.\d+)?|-|NA|N/A)"
NPU_FIRST = re.compile(rf"{NUMBER}\s+{NUMBER}\s+\S.*")
NPU_SECOND = re.compile(rf"{NUMBER}\s+(.*)")
PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Listed:
    """One device or partition as its vendor's tool lists it; None where it isn't said."""

    index: int  # the tool's own number
    key: str  # the same in every process of the machine, and no other device's
    board: str | None = None  # key shared by the partitions of one card; None for a whole card
    model: str | None = None
    bus: str | None = None  # PCI address: domain:bus:device.function


@dataclass(frozen=True, slots=True)
class NpuRow:
    """What `npu-smi info` shows of one chip; None where it shows a dash or nothing."""

    npu: int
    chip: int
    name: str
    bus: str | None
    health: str | None
    power_w: float | None
    temperature_c: float | None
    utilization: float | None  # share of the AI cores, 0 to 1
    memory_used_bytes: int | None
    memory_total_bytes: int | None


def nvidia_list(text: str) -> tuple[Listed, ...] | None:
    """Devices of `nvidia-smi -L`; a card in MIG mode counts as its slices, if it has any."""
    devices: list[Listed] = []
    card: Listed | None = None
    for line in text.splitlines():
        if gpu := GPU_LINE.fullmatch(line):
            card = Listed(index=int(gpu[1]), key=gpu[3], model=gpu[2])
            devices.append(card)
        elif card is not None and (mig := MIG_LINE.fullmatch(line)):
            if devices[-1] is card:
                devices.pop()
            model = f"{card.model} MIG {mig[1]}"
            devices.append(Listed(index=card.index, key=mig[3], board=card.key, model=model))
        elif line.strip() and not line.startswith(NO_NVIDIA):
            return None
    return _distinct(devices) if devices or NO_NVIDIA in text else None


def amd_list(text: str) -> tuple[Listed, ...] | None:
    """Devices of `amd-smi list --json`: partitions of a card differ in `partition_id` and bus."""
    entries = _json(text)
    if isinstance(entries, Mapping):
        entries = entries.get("gpu_data")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        return None
    devices: list[Listed] = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(number := entry.get("gpu"), int):
            return None
        bus, uuid = _text(entry.get("bdf")), _text(entry.get("uuid"))
        key = uuid or bus
        if key is None:
            return None
        devices.append(_partition(number, key, bus, entry.get("partition_id")))
    return _distinct(_on_shared_boards(devices))


def rocm_cards(text: str) -> tuple[Listed, ...] | None:
    """Devices of `rocm-smi --json`: the partitions of one card share its unique id."""
    start = text.find("{")  # warnings come before the JSON
    cards = _json(text[start:]) if start >= 0 else None
    if not isinstance(cards, Mapping):
        return None
    devices: list[Listed] = []
    for name, card in cards.items():
        matched = CARD.fullmatch(name)
        if matched is None:
            continue
        if not isinstance(card, Mapping):
            return None
        bus = _text(card.get("PCI Bus"))
        key = _text(card.get("Unique ID")) or bus or name
        model = _text(card.get("Card Series")) or _text(card.get("Card series"))
        devices.append(Listed(index=int(matched[1]), key=key, model=model, bus=bus))
    devices.sort(key=lambda device: device.index)
    return _distinct(_on_shared_boards(devices)) if devices else None


def npu_devices(text: str) -> tuple[Listed, ...] | None:
    """Devices of `npu-smi info`; a card may hold two chips, each of them a device."""
    rows = npu_rows(text)
    if rows is None:
        return None
    return _distinct(
        [
            Listed(
                index=index,
                key=row.bus or f"npu{row.npu}.{row.chip}",
                model=row.name,
                bus=row.bus,
            )
            for index, row in enumerate(rows)
        ]
    )


def npu_version(text: str) -> str | None:
    """The version of the driver's tools, from the first lines of `npu-smi info`."""
    found = NPU_VERSION.search(text)
    return None if found is None else found[1]


def npu_rows(text: str) -> tuple[NpuRow, ...] | None:
    """The chips in the table of `npu-smi info`, two lines of three cells each."""
    if npu_version(text) is None:
        return None
    rows: list[NpuRow] = []
    first: tuple[str, str, str] | None = None
    for line in text.splitlines():
        if "Process id" in line:
            break
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not cells[0][:1].isdigit():
            continue
        triple = (cells[0], cells[1], cells[2])
        if first is None:
            first = triple
            continue
        row = _npu_row(first, triple)
        if row is None:
            return None
        rows.append(row)
        first = None
    return None if first is not None else tuple(rows)


def _npu_row(first: tuple[str, str, str], second: tuple[str, str, str]) -> NpuRow | None:
    """One chip from `NPU Name | Health | Power Temp Pages` and `Chip | Bus | AICore Memory`."""
    npu, _, name = first[0].partition(" ")
    chip = second[0].split()[0]
    top, bottom = NPU_FIRST.fullmatch(first[2]), NPU_SECOND.fullmatch(second[2])
    if not npu.isdecimal() or not chip.isdecimal() or top is None or bottom is None:
        return None
    if not BUS.fullmatch(second[1]):
        return None
    pairs = [(int(used), int(total)) for used, total in PAIR.findall(bottom[2])]
    # HBM stands behind the DDR of older chips; the one that the chip has is not 0.
    used, total = next(((u, t) for u, t in reversed(pairs) if t > 0), (None, None))
    share = _number(bottom[1])
    return NpuRow(
        npu=int(npu),
        chip=int(chip),
        name=name.strip(),
        bus=second[1] if second[1][0].isalnum() and second[1] != "NA" else None,
        health=first[1] or None,
        power_w=_number(top[1]),
        temperature_c=_number(top[2]),
        utilization=None if share is None else share / 100,
        memory_used_bytes=None if used is None else used * MIB,
        memory_total_bytes=None if total is None else total * MIB,
    )


def npu_ecc(text: str) -> tuple[int | None, int | None]:
    """Corrected and uncorrected errors since the driver's start, of `npu-smi info -t ecc`.

    The memory kinds of the chip are added up; None where no line says a count.
    """
    counts: dict[str, int | None] = {"Single": None, "Double": None}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        for kind, so_far in counts.items():
            if name.strip().endswith(f"{kind} Bit Error Count") and value.strip().isdecimal():
                counts[kind] = (so_far or 0) + int(value)
    return counts["Single"], counts["Double"]


def _partition(number: int, key: str, bus: str | None, partition: Json) -> Listed:
    if isinstance(partition, int) and not isinstance(partition, bool) and partition > 0:
        return Listed(index=number, key=f"{key}/{partition}", board=_board(bus, key), bus=bus)
    return Listed(index=number, key=key, bus=bus)


def _board(bus: str | None, key: str) -> str:
    """What the partitions of one card share: the PCI address without the function."""
    return key if bus is None else bus.rpartition(".")[0]


def _on_shared_boards(devices: Sequence[Listed]) -> list[Listed]:
    """The devices, with a board where several of them are one card by key or PCI address."""
    boards = [_board(device.bus, device.key) for device in devices]
    return [
        replace(device, board=board) if device.board or boards.count(board) > 1 else device
        for device, board in zip(devices, boards, strict=True)
    ]


def _distinct(devices: Sequence[Listed]) -> tuple[Listed, ...]:
    """The devices, with the PCI address and the number behind a key that several have."""
    keys = [device.key for device in devices]
    whole = [
        replace(device, key=f"{device.key}/{device.bus or '?'}/{device.index}")
        if keys.count(device.key) > 1
        else device
        for device in devices
    ]
    seen: set[str] = set()
    for position, device in enumerate(whole):
        key, times = device.key, 1
        while key in seen:
            times += 1
            key = f"{device.key}#{times}"
        seen.add(key)
        whole[position] = replace(device, key=key)
    return tuple(whole)


def _json(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: Json) -> str | None:
    """A string that says something; the tools write N/A for what they don't know."""
    if not isinstance(value, str) or value.strip() in ("", "N/A", "NA", "None"):
        return None
    return value.strip()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
