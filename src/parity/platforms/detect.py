"""Which platform a run uses: facts are gathered once, then a pure function decides.

`decide` takes the vendor from what torch was built for (or from what was asked for by name) and
from nothing else, and says apart from it whether a device is usable in this process; so a process
without a device never becomes another vendor's. The driver decides once (`load`) and hands the
decision on; every other process checks it (`verify.py`). Nothing falls back in silence: see
`choose`.
"""

import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from parity.errors import ConfigError, UnsupportedError
from parity.platforms.collect import collect
from parity.platforms.cpu import CpuPlatform
from parity.platforms.decision import Decision, Source
from parity.platforms.facts import MAX_SHOWN, Facts
from parity.platforms.machine.inventory import Inventory, count, take_inventory
from parity.platforms.platform import Platform
from parity.platforms.plugins import all_platforms
from parity.platforms.tables.ray_variables import known_names
from parity.platforms.visibility import names
from parity.platforms.visibility.compose import compose, show
from parity.platforms.visibility.lists import Id
from parity.registry import known

log = logging.getLogger(__name__)
AUTO = "auto"
VARIABLE = "PARITY_PLATFORM"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One platform, and what in this torch drives it."""

    kind: type[Platform]
    build: str | None
    remedy: str


def decide(
    facts: Facts, *, wanted: str = AUTO, platforms: Iterable[type[Platform]] | None = None
) -> Decision:
    """The platform of a run and what this process has of it. Pure; never raises.

    `wanted` is the key `platform` of the run file, which wins over PARITY_PLATFORM; a name that
    isn't a platform is an error of the decision. `platforms` are those of this process.
    """
    kinds = all_platforms().values() if platforms is None else platforms
    ordered = sorted(kinds, key=lambda kind: (-kind.precedence, kind.name))
    failures: list[str] = []
    candidates = [_candidate(kind, facts, failures) for kind in ordered]
    chosen, source, why, errors = _choose(candidates, facts, wanted)
    warnings = _rivals(candidates, chosen) if source == "build" else []
    # A platform that fails may be the right one; where another was asked for, it doesn't matter.
    (errors if source == "build" else warnings).extend(failures)
    reasons = [why, *_build_reasons(chosen, facts)]
    inventory = take_inventory(chosen.kind, facts)
    devices: tuple[Id, ...] | None = ()
    is_usable = False
    if chosen.build is not None:
        devices, is_usable, said, wrong, doubts = _devices(chosen.kind, inventory, facts)
        reasons += said
        errors += wrong
        warnings += doubts
    warnings += _odd_variables(ordered, chosen.kind, facts)
    if source == "build" and not (is_usable and devices and chosen.kind.visibility):
        warnings += _idle_hardware(candidates, chosen, facts)
    return Decision(
        platform=chosen.kind.name,
        vendor=chosen.kind.vendor,
        device_type=chosen.kind.device_type,
        source=source,
        is_built_for=chosen.build is not None,
        is_usable_here=is_usable and not errors,
        devices=devices,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        errors=tuple(errors),
    )


def choose(wanted: str, facts: Facts, *, needs_device: bool = True) -> Decision:
    """The decision that a run goes by: `decide`, and the CPU in one case, with a warning.

    The case: nobody asked for a platform, torch is the default build that PyPI gives to everyone,
    this process itself is to compute, and nothing at all says that the machine has or had such a
    device. Raises ConfigError where the decision has errors.
    """
    decision = decide(facts, wanted=wanted)
    if decision.errors:
        raise ConfigError(" ".join(decision.errors))
    if not needs_device or decision.is_usable_here or decision.source != "build":
        return decision
    kind = all_platforms()[decision.platform]
    if not kind.is_default_build or has_trace(kind, facts):
        return decision
    cpu = decide(facts, wanted=CpuPlatform.name)
    warning = (
        f"torch is built for {kind.built_for(facts)}, and this machine shows no trace of"
        f" {kind.vendor} devices; running on the CPU. Set platform={kind.name} to insist, or"
        " platform=cpu to say so yourself."
    )
    return dataclasses.replace(
        cpu, source="build", reasons=decision.reasons, warnings=(*decision.warnings, warning)
    )


def has_trace(kind: type[Platform], facts: Facts) -> bool:
    """Whether anything but torch's build hints at such devices; a hint is no device."""
    probes = [probe for tool in kind.smi_tools if (probe := facts.probe(tool)) is not None]
    rules = kind.visibility
    variables = () if rules is None else (rules.outer, *rules.inner)
    return (
        any(probe.status != "absent" for probe in probes)
        or any(source in facts.device_counts for source in kind.count_sources)
        or any(name in facts.environment for name in variables)
        or any(_matches(node, kind.device_nodes) for node in facts.device_nodes)
    )


def load(wanted: str = AUTO) -> Platform:
    """The platform for `platform=wanted`, usable in this process, with the decision logged once.

    Raises ConfigError where a name or variable is wrong, UnsupportedError where the platform
    can't be used here.
    """
    decision = decide_here(wanted)
    tell(decision)
    return use(decision)


def tell(decision: Decision) -> None:
    """Log a decision with its reasons and warnings, where the caller's log is open."""
    log.info(
        "event=platform name=%s vendor=%s devices=%s reason=%s",
        decision.platform,
        decision.vendor,
        decision.devices,
        "; ".join(decision.reasons),
    )
    for warning in decision.warnings:
        log.warning("platform: %s", warning)


def decide_here(wanted: str = AUTO) -> Decision:
    """The driver's decision, from the facts of this machine; hand it on with `to_variable`.

    Runs the vendors' tools, unless the CPU was asked for. Raises ConfigError as `choose`.
    """
    asked = wanted if wanted != AUTO else os.environ.get(VARIABLE, "").strip()
    return choose(wanted, collect(probe_tools=asked != CpuPlatform.name))


def use(decision: Decision, *, needs_device: bool = True) -> Platform:
    """The platform of a decision, checked to be usable in this process.

    A driver whose devices are other processes' needs none. Where nobody could list devices, the
    runtime has the last word; where there are none, or where they are hidden, it isn't asked.
    Raises UnsupportedError with the reasons.
    """
    platform = all_platforms()[decision.platform]()
    if not needs_device:
        return platform
    is_open = decision.is_built_for and decision.devices != ()
    if not decision.is_usable_here and not is_open:
        raise UnsupportedError(_refusal(decision))
    platform.require_usable()
    return platform


def _candidate(kind: type[Platform], facts: Facts, errors: list[str]) -> _Candidate:
    """What a platform says of the facts; its failure is an error of the decision."""
    try:
        build, remedy = kind.built_for(facts), kind.remedy()
        if not isinstance(cast("object", build), str | None) or not isinstance(
            cast("object", remedy), str
        ):
            raise TypeError(f"{build!r} and {remedy!r}")
    except Exception as error:  # noqa: BLE001 (other people's code; a decision never raises)
        errors.append(f"platform {kind.name} failed to read the facts: {error!r}.")
        return _Candidate(kind, None, f"repair platform {kind.name}")
    return _Candidate(kind, build, remedy)


def _advice(kind: type[Platform], facts: Facts) -> list[str]:
    try:
        return [str(sentence) for sentence in kind.advice(facts)]
    except Exception as error:  # noqa: BLE001 (see `_candidate`)
        return [f"platform {kind.name} failed to give advice: {error!r}."]


def _choose(
    candidates: Sequence[_Candidate], facts: Facts, wanted: str
) -> tuple[_Candidate, Source, str, list[str]]:
    """The candidate, who chose it, why, and what was asked for wrongly."""
    by_name = {candidate.kind.name: candidate for candidate in candidates}
    wrong: list[str] = []
    asked: tuple[tuple[str | None, str, Source], ...] = (
        (wanted, "platform", "key"),
        (facts.variable(VARIABLE), VARIABLE, "variable"),
    )
    for name, place, source in asked:
        if not name or name == AUTO:
            continue
        if name in by_name:
            return by_name[name], source, f"{place}={name} was set", wrong
        names_known = known(name.lower(), [AUTO, *sorted(by_name)])
        wrong.append(f"{place} is {name[:MAX_SHOWN]!r}; {names_known}")
    built = [candidate for candidate in candidates if candidate.build is not None]
    chosen = (built or [candidates[-1]])[0]
    torch = "torch isn't installed" if facts.torch is None else f"torch {facts.torch.version}"
    if chosen.build is None:
        return chosen, "build", torch, wrong
    only = " only" if chosen.kind.precedence == 0 else ""
    return chosen, "build", f"{torch} is built for {chosen.build}{only}", wrong


def _build_reasons(chosen: _Candidate, facts: Facts) -> list[str]:
    if chosen.build is not None:
        return []
    if facts.torch is None:
        return [f"without torch nothing computes; {chosen.remedy}"]
    return [
        f"torch {facts.torch.version} isn't built for {chosen.kind.vendor} devices; {chosen.remedy}"
    ]


def _rivals(candidates: Sequence[_Candidate], chosen: _Candidate) -> list[str]:
    """What else this torch could drive, the CPU aside."""
    return [
        f"torch could drive {other.kind.name} ({other.build}) too; {chosen.kind.name} is the more"
        f" specific one. Set {VARIABLE} to one of them to choose."
        for other in candidates
        if other is not chosen and other.build is not None and other.kind.precedence > 0
    ]


def _devices(
    kind: type[Platform], inventory: Inventory, facts: Facts
) -> tuple[tuple[Id, ...] | None, bool, list[str], list[str], list[str]]:
    """(map, usable, reasons, errors, warnings) of a platform that torch is built for."""
    if kind.visibility is None and not kind.smi_tools and not kind.count_sources:
        return (0,), True, [], [], []
    reasons, warnings = list(inventory.reasons), [*inventory.warnings, *_advice(kind, facts)]
    devices: tuple[Id, ...] | None = None
    if inventory.devices is not None:
        devices = tuple(device.index for device in inventory.devices)
    if kind.visibility is not None:
        view = compose(kind.visibility, facts.environment, inventory.devices)
        warnings += view.warnings
        if view.errors:
            return (), False, reasons, list(view.errors), warnings
        lists = (*((view.outer,) if view.outer is not None else ()), *view.inner)
        reasons += [f"{each} is set" for each in lists]
        devices = view.devices
    if inventory.devices is None and devices != ():
        reasons.append("no source lists devices, so none is taken for usable here")
        nodes = [node for node in facts.device_nodes if _matches(node, kind.device_nodes)]
        if nodes:
            reasons.append(f"{', '.join(nodes)} exist, and a node isn't taken for a device")
        return devices, False, reasons, [], warnings
    if not devices:
        has_some = bool(inventory.devices) or inventory.devices is None
        reasons.append("the variables hide every device" if has_some else "there is no device here")
        return (), False, reasons, [], warnings
    reasons.append(f"this process may use {count(devices)}: {show(devices)}")
    return devices, True, reasons, [], warnings


def _matches(node: str, patterns: Iterable[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(node, pattern) for pattern in patterns)


def _odd_variables(
    kinds: Sequence[type[Platform]], chosen: type[Platform], facts: Facts
) -> list[str]:
    """Names that nothing reads, and lists of another platform."""
    lists = {
        kind: (kind.visibility.outer, *kind.visibility.inner)
        for kind in kinds
        if kind.visibility is not None
    }
    every = {name for each in lists.values() for name in each if name is not None}
    own = {name for name in lists.get(chosen, ()) if name is not None}
    said = names.misspelt(facts.environment, {*every, *known_names()})
    if chosen.visibility is None:
        return list(said)
    return [*said, *names.without_effect(facts.environment, own, every, chosen.name)]


def _idle_hardware(candidates: Sequence[_Candidate], chosen: _Candidate, facts: Facts) -> list[str]:
    """Devices of a platform that this torch can't drive."""
    said: list[str] = []
    for each in candidates:
        if each is chosen or each.build is not None:
            continue
        inventory = take_inventory(each.kind, facts)
        if inventory.devices:
            said.append(
                f"{inventory.source} lists {count(inventory.devices)} of {each.kind.vendor}, which"
                f" this torch can't drive; {each.remedy} to use them."
            )
    return said


def _refusal(decision: Decision) -> str:
    return (
        f"platform {decision.platform} can't be used in this process: "
        f"{'; '.join(decision.reasons)}. Run `parity doctor` for the whole picture, or set"
        " platform=cpu to compute on the CPU."
    )
