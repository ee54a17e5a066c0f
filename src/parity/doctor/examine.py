"""Puts the doctor's report together from the facts of a machine.

Used by `parity doctor`. Invariants: no device runtime is started in this process; with facts from
a file, the decision and the variables are those of that machine, no tool is run, and libraries and
limits, which only a machine itself can say, are left out.
"""

import traceback
from importlib.util import find_spec

from parity.config import environment
from parity.doctor import imports, libraries, limits, variables
from parity.doctor.report import Finding, Level, Library, Limit, Report, Variable
from parity.errors import ConfigError
from parity.platforms.collect import collect
from parity.platforms.decision import Decision
from parity.platforms.detect import AUTO, choose, decide
from parity.platforms.facts import Facts
from parity.platforms.platform import Platform
from parity.platforms.plugins import Plugins, all_platforms, loaded

SMI_TROUBLE = ("timeout", "failed", "garbage")


def examine(facts: Facts | None = None) -> Report:
    """The report on this machine, or on the one that `facts` describe."""
    is_from_file = facts is not None
    known = collect() if facts is None else facts
    decision = _decide(known)
    platform = all_platforms()[decision.platform]()
    found_libraries, found_limits, findings = ([], [], []) if is_from_file else _of_here(platform)
    rows, variable_findings = _variables(platform, known)
    findings = [
        *_of_decision(decision),
        *_of_tools(known, platform),
        *_of_plugins(loaded()),
        *variable_findings,
        *findings,
    ]
    return Report(
        facts=known,
        decision=decision,
        variables=tuple(rows),
        libraries=tuple(found_libraries),
        limits=tuple(found_limits),
        findings=tuple(sorted(findings, key=lambda finding: finding.level)),  # errors first
        is_from_file=is_from_file,
    )


def _of_here(platform: Platform) -> tuple[list[Library], list[Limit], list[Finding]]:
    """What only the machine itself can say."""
    found_libraries, library_findings = libraries.examine()
    omp_threads, omp_findings = _omp_threads()
    found_limits, limit_findings = limits.examine(
        omp_threads, has_accelerator=platform.visibility is not None
    )
    findings = [
        *library_findings,
        *imports.try_torch(),
        *_of_telemetry(platform),
        *omp_findings,
        *limit_findings,
    ]
    return found_libraries, found_limits, findings


def _decide(facts: Facts) -> Decision:
    """What a run without a key `platform` would go by; with its errors where it would stop."""
    try:
        return choose(AUTO, facts)
    except ConfigError:
        return decide(facts)


def _of_decision(decision: Decision) -> list[Finding]:
    area = "platform"
    found = [
        Finding("error", area, error, "change that, then run `parity doctor` again.")
        for error in decision.errors
    ]
    if not decision.is_usable_here and not found:
        built = "" if decision.is_built_for else ", and this torch isn't built for it"
        found.append(
            Finding(
                "error",
                area,
                f"platform {decision.platform} can't be used in this process{built}:"
                f" {decision.reasons[-1] if decision.reasons else 'no reason is known'}.",
                "run on a node that has such devices and shows them to this process, or set"
                " platform=cpu to compute on the CPU.",
            )
        )
    return found + [
        Finding("warning", area, warning, "see the reasons of the decision.")
        for warning in decision.warnings
    ]


def _of_tools(facts: Facts, platform: Platform) -> list[Finding]:
    """The tools of the platform that are there and don't answer; others don't matter."""
    return [
        Finding(
            "warning",
            "platform",
            f"{probe.tool} doesn't list devices: {probe.detail or probe.status}.",
            f"run {probe.path or probe.tool} by hand; if it hangs or fails, the driver is ill.",
        )
        for probe in facts.smi
        if probe.tool in platform.smi_tools and probe.status in SMI_TROUBLE
    ]


def _of_plugins(plugins: Plugins) -> list[Finding]:
    return [
        Finding(
            "warning",
            "plugins",
            failure.message,
            "repair or uninstall the package, or leave its name out of PARITY_PLUGINS.",
            failure.traceback,
        )
        for failure in plugins.failures
    ]


def _variables(platform: Platform, facts: Facts) -> tuple[list[Variable], list[Finding]]:
    """What Parity would set; a platform of another package may fail to say it."""
    try:
        return variables.examine(platform, facts.environment, facts.versions.get("ray")), []
    except Exception as error:  # noqa: BLE001 (other people's code; the doctor outlives it)
        return [], [_failed(platform, "its variables", error, "error")]


def _failed(platform: Platform, what: str, error: Exception, level: Level) -> Finding:
    return Finding(
        level,
        "plugins",
        f"platform {platform.name} can't say {what}: {error!r}.",
        "repair the package that brings it, or leave its name out of PARITY_PLUGINS.",
        traceback.format_exc(),
    )


def _of_telemetry(platform: Platform) -> list[Finding]:
    try:
        telemetry = platform.telemetry()
    except Exception as error:  # noqa: BLE001 (other people's code; the doctor outlives it)
        return [_failed(platform, "its telemetry", error, "warning")]
    package = telemetry.package
    if package is None or find_spec(package) is not None:
        return []
    return [
        Finding(
            "warning",
            "libraries",
            f"the package {package} isn't installed, so utilisation, power and temperature of the"
            " devices stay unknown.",
            telemetry.remedy,
        )
    ]


def _omp_threads() -> tuple[int | None, list[Finding]]:
    try:
        return environment.omp_threads(), []
    except ConfigError as error:
        finding = Finding("error", "limits", str(error), "set it to a number, or unset it.")
        return None, [finding]
