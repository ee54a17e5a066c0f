"""Composes the visibility variables of a platform into the map from logical index to physical id.

The outer variable (ROCR_VISIBLE_DEVICES on AMD) filters physical devices; the inner ones count
inside what it left, from 0 again. Without an outer one the inner list names physical devices.
Used by `detect.py`, and by runtimes to place a child process. Invariant: a child whose list was
written by `child_variables` sees exactly the devices that were chosen, in that order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parity.errors import UnsupportedError
from parity.platforms.facts import SmiDevice
from parity.platforms.visibility.lists import DeviceList, Id, read_list

SLICE = "MIG-"  # how the UUID of a part of a card begins


@dataclass(frozen=True, slots=True)
class Rules:
    """How a platform's runtime reads its variables."""

    outer: str | None
    inner: tuple[str, ...]  # the first that is set is read; the first is written where none is
    needs_ascending_ids: bool
    hides_after_negative: bool
    is_empty_ambiguous: bool  # versions differ in whether an empty value hides everything
    nothing: str  # the value that hides every device


@dataclass(frozen=True, slots=True)
class Visibility:
    """What a process may use of a machine's devices."""

    rules: Rules
    devices: tuple[Id, ...] | None  # logical index -> physical id; None: not known
    outer: DeviceList | None  # None: not set
    inner: tuple[DeviceList, ...]  # those that are set, the one that is read first
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    def logical_index(self, physical: Id) -> int:
        """The index under which this process sees a physical device.

        Raises UnsupportedError, with the map, where it doesn't see it.
        """
        return logical_index(self.devices, physical)

    def child_variables(self, logical: Sequence[int]) -> dict[str, str]:
        """The variables that show a child process these of the parent's devices, in this order.

        They replace the parent's values of the same names; an outer list is inherited as it is.
        Raises UnsupportedError for an index out of range, given twice, or in an order that this
        platform can't express, and where the parent's own variables are wrong.
        """
        if self.errors:
            raise UnsupportedError(self.errors[0])
        self._check(logical)
        value = ",".join(self._token(index) for index in logical) if logical else self.rules.nothing
        names = [each.variable for each in self.inner] or list(self.rules.inner[:1])
        return dict.fromkeys(names, value)

    def _check(self, logical: Sequence[int]) -> None:
        if len(set(logical)) < len(logical):
            raise UnsupportedError(f"a child can't be given a device twice: {list(logical)}.")
        for index in logical:
            count = None if self.devices is None else len(self.devices)
            if index < 0 or (count is not None and index >= count):
                raise UnsupportedError(
                    f"a child was to get the device of index {index}; this process sees"
                    f" {show(self.devices)}."
                )
        if self.rules.needs_ascending_ids and list(logical) != sorted(logical):
            raise UnsupportedError(
                f"a child was to get the devices {list(logical)}; {self.rules.inner[0]} takes them"
                f" in ascending order only: {sorted(logical)}."
            )

    def _token(self, index: int) -> str:
        """How a child's list names a device: as the parent's list does, else by its position."""
        if self.devices and str(self.devices[index]).startswith(SLICE):
            return str(self.devices[index])  # the parent's list may name what the slice hides
        if self.inner:
            return str(self.inner[0].ids[index])
        if self.outer is not None or self.devices is None:
            return str(index)
        return str(self.devices[index])


def logical_index(devices: Sequence[Id] | None, physical: Id) -> int:
    """The position of a physical id; raises UnsupportedError, with the map, where it isn't."""
    for index, each in enumerate(devices or ()):
        if str(each) == str(physical):
            return index
    raise UnsupportedError(
        f"device {physical} isn't visible to this process, which sees {show(devices)}."
    )


def show(devices: Sequence[Id] | None) -> str:
    """The map in words, as in `0 -> 4, 1 -> 5`."""
    if devices is None:
        return "devices that couldn't be listed"
    pairs = ", ".join(f"{index} -> {each}" for index, each in enumerate(devices))
    return f"the devices (logical -> physical) {pairs}" if pairs else "no device"


def compose(
    rules: Rules, environment: Mapping[str, str], physical: Sequence[SmiDevice] | None
) -> Visibility:
    """What the variables leave of the physical devices (None: not known). Never raises."""
    outer = _read(rules, environment, rules.outer)
    inner = [
        found for name in rules.inner if (found := _read(rules, environment, name)) is not None
    ]
    lists = (*((outer,) if outer is not None else ()), *inner)
    warnings = [warning for each in lists for warning in each.warnings]
    warnings += [_ambiguous(each) for each in lists if rules.is_empty_ambiguous and _is_empty(each)]
    errors = [error for each in lists for error in each.errors]
    if not errors:
        errors += _unordered(rules, lists)
    if not errors and len(inner) > 1:
        said, is_error = _compare(inner[0], inner[1:], physical)
        (errors if is_error else warnings).extend(said)
    if outer is not None and any(each.ids == outer.ids for each in inner) and outer.ids:
        warnings.append(
            f"{outer} and {inner[0]} are both set; the second counts inside what the first leaves,"
            " and one of them is enough."
        )
    devices: tuple[Id, ...] | None = ()
    if not errors:
        devices, errors = _apply(outer, next(iter(inner), None), physical)
    if devices and (slice_id := _only_slice(devices, physical)) is not None:
        if len(devices) > 1:
            warnings.append(_hidden(rules, devices, slice_id))
        devices = (slice_id,)
    return Visibility(
        rules, () if errors else devices, outer, tuple(inner), tuple(warnings), tuple(errors)
    )


def _read(rules: Rules, environment: Mapping[str, str], name: str | None) -> DeviceList | None:
    if name is None or name not in environment:
        return None
    return read_list(
        name, environment[name].strip(), hides_after_negative=rules.hides_after_negative
    )


def _is_empty(found: DeviceList) -> bool:
    return not found.value


def _ambiguous(found: DeviceList) -> str:
    return (
        f"{found.variable} is empty, which is taken for no device; some versions of the runtime"
        f" read it as unset. Set {found.variable}=-1 to hide every device, or unset it."
    )


def _unordered(rules: Rules, lists: Sequence[DeviceList]) -> list[str]:
    if not rules.needs_ascending_ids:
        return []
    return [
        f"{each} isn't in ascending order, which its runtime needs; write"
        f" {each.variable}={','.join(str(number) for number in _sorted(each))}."
        for each in lists
        if list(each.ids) != _sorted(each)
    ]


def _sorted(found: DeviceList) -> list[Id]:
    return sorted(found.ids, key=lambda each: (isinstance(each, str), each))


def _compare(
    first: DeviceList, others: Sequence[DeviceList], physical: Sequence[SmiDevice] | None
) -> tuple[list[str], bool]:
    """What is to be said about several inner lists, and whether they contradict each other."""
    said: list[str] = []
    for other in others:
        one, two = _resolved(first, physical), _resolved(other, physical)
        if set(one) != set(two):
            return [
                f"{first} and {other} contradict each other, and only {first.variable} would be"
                f" read here; remove the line that sets {other.variable}, or give both the same"
                " list."
            ], True
        order = "" if one == two else ", in another order"
        said.append(
            f"{other} says the same as {first}{order}; {first.variable} is read, and"
            f" {other.variable} can be removed."
        )
    return said, False


def _resolved(found: DeviceList, physical: Sequence[SmiDevice] | None) -> list[Id]:
    return [_number_of(each, physical) for each in found.ids]


def _number_of(each: Id, physical: Sequence[SmiDevice] | None) -> Id:
    """The id of the only device whose UUID begins like this; what was given otherwise."""
    if isinstance(each, int):
        return each
    lower = each.lower()
    matches = [_id_of(d) for d in physical or () if (d.uuid or "").lower().startswith(lower)]
    return matches[0] if len(matches) == 1 else each


def _id_of(device: SmiDevice) -> Id:
    """Its number; the UUID of a slice, because all slices of a card have the card's number."""
    is_slice = device.uuid is not None and device.uuid.startswith(SLICE)
    return device.uuid if is_slice and device.uuid is not None else device.index


def _only_slice(devices: Sequence[Id], physical: Sequence[SmiDevice] | None) -> Id | None:
    """The one slice that the runtime enumerates where it sees any: the first; None without one.

    Source: NVIDIA MIG user guide, CUDA device enumeration. Devices that aren't cut are hidden too.
    """
    first_of: dict[Id, Id] = {}
    for each in physical or ():
        if isinstance(found := _id_of(each), str):
            first_of.setdefault(each.index, found)
    named = [first_of.get(each, each) for each in devices]
    return next((e for e in named if isinstance(e, str) and e.startswith(SLICE)), None)


def _hidden(rules: Rules, devices: Sequence[Id], seen: Id) -> str:
    return (
        f"a process sees one MIG slice and nothing beside it: {seen} of {len(devices)} devices; set"
        f" {rules.inner[0]} to the UUID of the slice that it is to use."
    )


def _apply(
    outer: DeviceList | None, inner: DeviceList | None, physical: Sequence[SmiDevice] | None
) -> tuple[tuple[Id, ...] | None, list[str]]:
    """The map, and why there is none."""
    first = outer if outer is not None else inner
    if first is None:
        return (None if physical is None else tuple(dict.fromkeys(map(_id_of, physical)))), []
    if (error := _absent(first, physical)) is not None:
        return (), [error]
    left = tuple(_resolved(first, physical))
    if outer is None or inner is None:
        return left, []
    return _inside(outer, left, inner, physical)


def _absent(found: DeviceList, physical: Sequence[SmiDevice] | None) -> str | None:
    """Why the machine hasn't all devices of the list, where that is known."""
    if physical is None:
        return None
    has_uuids = all(device.uuid for device in physical)
    there = {device.index for device in physical}
    missing = [
        each
        for each, number in zip(found.ids, _resolved(found, physical), strict=True)
        if (isinstance(number, int) and number not in there)
        or (isinstance(number, str) and has_uuids and not number.startswith(SLICE))
    ]
    if not missing:
        return None
    names = ", ".join(str(each) for each in missing)
    have = ", ".join(str(number) for number in sorted(there)) or "no device"
    return (
        f"{found} names {names}, which this machine hasn't (it has {have});"
        f" remove {'it' if len(missing) == 1 else 'them'} from the list."
    )


def _inside(
    outer: DeviceList,
    left: tuple[Id, ...],
    inner: DeviceList,
    physical: Sequence[SmiDevice] | None,
) -> tuple[tuple[Id, ...], list[str]]:
    """The inner list read inside what the outer one left."""
    chosen: list[Id] = []
    for each in inner.ids:
        if isinstance(each, int) and each < len(left):
            chosen.append(left[each])
        elif isinstance(each, str) and _number_of(each, physical) in left:
            chosen.append(_number_of(each, physical))
        else:
            return (), [_beyond(outer, left, inner, each)]
    return tuple(chosen), []


def _beyond(outer: DeviceList, left: tuple[Id, ...], inner: DeviceList, wrong: Id) -> str:
    """The inner list asks for what the outer one hid: the two, and the pair that works."""
    numbers = [str(index) for index, each in enumerate(left) if each in inner.ids]
    works = ",".join(numbers) or ",".join(str(index) for index in range(len(left))) or "-1"
    count = f"{len(left)} device{'' if len(left) == 1 else 's'}, counted from 0"
    return (
        f"{inner} counts inside {outer}, which leaves {count}, so that {wrong} doesn't exist;"
        f" remove the line that sets {inner.variable}, or keep {outer} with"
        f" {inner.variable}={works}."
    )
