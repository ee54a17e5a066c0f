"""The doctor's report as plain text for a terminal, at most 100 columns where it can be.

Invariant: whatever the facts say, only printable characters are shown.
"""

import textwrap
from collections.abc import Iterable, Sequence

from parity.doctor.report import Library, Report, Variable

WIDTH = 100
VERDICTS = ("Usable.", "Usable, with warnings.", "Not usable.")
MARKS = {"present": "+", "missing": "-", "unknown": "?"}
ENOUGH = {True: "ok", False: "LOW", None: "?"}


def as_lines(report: Report) -> list[str]:
    """The whole report: verdict and findings first, then what they rest on."""
    lines = [
        *_decision(report),
        "",
        *_findings(report),
        "",
        *_variables(report.variables),
        "",
        *(["Libraries and limits: unknown from a facts file"] if report.is_from_file else []),
        *([] if report.is_from_file else _machine(report)),
    ]
    return [_printable(line) for line in lines]


def _machine(report: Report) -> list[str]:
    return [
        "Libraries (+ present, - missing, ? unknown)",
        *(line for library in report.libraries for line in _library(library)),
        "",
        "Limits",
        *_table(
            ("limit", "here", "needed", ""),
            [
                (each.name, each.value or "unknown", each.needed, ENOUGH[each.is_enough])
                for each in report.limits
            ],
        ),
    ]


def _decision(report: Report) -> list[str]:
    decision = report.decision
    devices = "unknown"
    if decision.devices is not None:
        devices = ", ".join(f"{i}={each}" for i, each in enumerate(decision.devices)) or "none"
    built = "built for it" if decision.is_built_for else "not built for it"
    usable = "usable here" if decision.is_usable_here else "not usable here"
    chosen = {
        "build": "by what torch is built for",
        "variable": "by PARITY_PLATFORM",
        "key": "by the run file",
    }[decision.source]
    of = "the facts file" if report.is_from_file else "this process"
    return [
        f"{VERDICTS[report.exit_status]} Platform {decision.platform} (vendor {decision.vendor},"
        f" device type {decision.device_type}) for {of}",
        f"  torch       {built}, {usable}",
        f"  chosen      {chosen}",
        f"  devices     {devices} (index here = id of the machine)",
        *_bullets("because", decision.reasons),
    ]


def _bullets(title: str, items: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for number, item in enumerate(items):
        lines += _wrapped(item, f"  {title if number == 0 else '':<12}- ")
    return lines


def _findings(report: Report) -> list[str]:
    if not report.findings:
        return ["Findings: none"]
    lines = ["Findings"]
    for finding in report.findings:
        lines += _wrapped(finding.message, f"  {finding.level:<8}{finding.area}: ")
        lines += _wrapped(finding.remedy, "          -> ")
        lines += [f"          | {line}" for line in (finding.detail or "").splitlines()]
    return lines


def _variables(rows: Iterable[Variable]) -> list[str]:
    """One entry per variable and value, with the roles that get it."""
    entries: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        value = " when placed" if row.value is None else f"={row.value}"
        under = ", under Ray only" if row.only_under_ray else ""
        source = "from your environment" if row.is_users_own else f"from {row.source}"
        why = row.reason
        if row.is_users_own and row.value != row.default:
            why = f"your value wins over Parity's {row.default!r}: {why}"
        elif row.is_users_own:
            why = f"your value is Parity's too: {why}"
        entries.setdefault((f"{row.name}{value}", f"{source}{under}: {why}"), []).append(row.role)
    lines = ["Variables that Parity sets"]
    for (variable, why), roles in entries.items():
        lines.append(f"  {variable}  ({', '.join(roles)})")
        lines += _wrapped(why, "      ")
    return lines if entries else [*lines, "  none"]


def _library(library: Library) -> list[str]:
    needed = "" if library.is_required else " (optional)"
    if library.version is None:
        return [f"  {library.name:<14}not installed{needed}, for {library.used_for}"]
    lines = [f"  {library.name:<14}{library.version}{needed}, for {library.used_for}"]
    return lines + [f"    {MARKS[each.presence]} {each.name}" for each in library.symbols]


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns; the last one is wrapped."""
    cells = [heading, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading) - 1)]
    lines: list[str] = []
    for row in cells:
        start = "  ".join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True))
        lines += _wrapped(row[-1], f"  {start}  ")
    return [line.rstrip() for line in lines]


def _wrapped(text: str, start: str) -> list[str]:
    """The text behind `start`, further lines under its beginning."""
    width = max(WIDTH, len(start) + 40)
    indent = " " * len(start)
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=indent) or [start]


def _printable(line: str) -> str:
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")
