"""Checks the values of one registering call and makes a `Registration` of them.

Used by `reading.py`. Each check tells the found value, the known ones and the remedy, and all of
a call are made before it is given up.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, timedelta
from typing import cast

from parity.ci.config import Backend, Config
from parity.ci.model import Disabled, Registration
from parity.ci.registry.calls import Call
from parity.ci.text import shown
from parity.registry import known

KEYWORDS = ("est_time", "suite", "labels", "nightly", "disabled")
DISABLED_KEYS = ("reason", "issue", "owner", "expires")
MOST_SECONDS = 7 * 24 * 3600.0
Tell = Callable[[int, str], None]


class ArgumentReader:
    """Turns calls of one file into registrations; `tell(line, sentence)` hears of problems."""

    def __init__(self, config: Config, path: str, today: date, tell: Tell) -> None:
        self._config = config
        self._path = path
        self._today = today
        self._tell = tell
        self._count = 0

    def registration(self, call: Call, backend: Backend) -> Registration | None:
        """The registration of a call on a backend; None where it has a problem."""
        self._count = 0
        check_keywords(call, KEYWORDS, self._problem)
        self._check_place(call, backend)
        found = Registration(
            path=self._path,
            line=call.line,
            backend=backend.name,
            suite=self._suite(call, backend),
            est_time_s=self._est_time(call),
            labels=self._labels(call, backend),
            nightly=self._nightly(call),
            disabled=self._disabled(call),
        )
        return found if self._count == 0 else None

    def _problem(self, line: int, text: str) -> None:
        self._count += 1
        self._tell(line, text)

    def _check_place(self, call: Call, backend: Backend) -> None:
        for folder in self._config.project.cpu_only:
            if backend.is_accelerator and is_below(self._path, folder):
                self._problem(
                    call.line,
                    f"{call.name} is in {folder}, a folder for tests without accelerators; move"
                    " the file or drop the registration.",
                )

    def _suite(self, call: Call, backend: Backend) -> str:
        value = call.values.get("suite")
        suites = self._config.suites
        own = [name for name, suite in suites.items() if suite.backend == backend.name]
        line = call.line_of("suite")
        if not isinstance(value, str):
            found = "is missing" if value is None else f"is {shown(value)}"
            self._problem(line, f"suite {found}; it must be one of: {', '.join(own)}.")
        elif value not in suites:
            self._problem(
                line, f"suite is {shown(value)}, which ci.toml doesn't have; {known(value, own)}"
            )
        elif value not in own:
            other = suites[value].backend
            self._problem(
                line, f"suite {value!r} is of {other}, not of {backend.name}; {known(value, own)}"
            )
        return value if isinstance(value, str) else ""

    def _est_time(self, call: Call) -> float:
        value = call.values.get("est_time")
        line = call.line_of("est_time")
        number = finite(value)
        if number is None or not 0 < number <= MOST_SECONDS:
            found = f"is {shown(value)}" if "est_time" in call.values else "is missing"
            self._problem(
                line, f"est_time {found}; it must be a number of seconds > 0, at most a week."
            )
            return 1.0
        return number

    def _labels(self, call: Call, backend: Backend) -> tuple[str, ...]:
        value = call.values.get("labels", ())
        line = call.line_of("labels")
        if not isinstance(value, list | tuple):
            self._problem(line, f"labels is {shown(value)}; it must be a list of strings.")
            return ()
        labels = cast("Collection[object]", value)
        if len(labels) > len(self._config.labels):
            most = len(self._config.labels)
            self._problem(line, f"labels has {len(labels)} items, and ci.toml has {most} labels.")
            return ()
        seen: list[str] = []
        prefix = self._config.label_prefix
        for label in labels:
            if not isinstance(label, str) or label not in self._config.labels:
                text = (label if isinstance(label, str) else shown(label)).removeprefix(prefix)
                self._problem(
                    line, f"label {shown(label)} is unknown; {known(text, self._config.labels)}"
                )
            elif label in seen:
                self._problem(line, f"label {label!r} is given twice; once is enough.")
            else:
                seen.append(label)
        if not labels and backend.needs_labels:
            self._problem(
                line,
                f"{call.name} has no labels, and {backend.name} needs at least one;"
                f" {known('', self._config.labels)}",
            )
        return tuple(seen)

    def _nightly(self, call: Call) -> bool:
        value = call.values.get("nightly", False)
        if not isinstance(value, bool):
            line = call.line_of("nightly")
            self._problem(line, f"nightly is {shown(value)}; it must be True or False.")
        return value is True

    def _disabled(self, call: Call) -> Disabled | None:
        value = call.values.get("disabled")
        line = call.line_of("disabled")
        if value is None:
            return None
        form = (
            'disabled={"reason": "...", "issue": "https://.../issues/1", "owner": "@name",'
            ' "expires": "2026-12-31"}'
        )
        if not isinstance(value, dict):
            self._problem(line, f"disabled is {shown(value)}; a reason alone isn't enough: {form}.")
            return None
        fields = cast("Mapping[object, object]", value)
        for key in fields:
            if key not in DISABLED_KEYS:
                name = key if isinstance(key, str) else ""
                self._problem(line, f"disabled has {shown(key)}; {known(name, DISABLED_KEYS)}")
        for key in DISABLED_KEYS:
            text = fields.get(key)
            if not isinstance(text, str) or not text.strip():
                self._problem(line, f"disabled has no {key}; write {form}.")
                return None
        return self._disabled_fields({key: str(fields[key]) for key in DISABLED_KEYS}, line)

    def _disabled_fields(self, fields: Mapping[str, str], line: int) -> Disabled | None:
        project = self._config.project
        if not re.fullmatch(project.issues, fields["issue"]):
            self._problem(
                line,
                f"disabled names the issue {shown(fields['issue'])}; it must be a link"
                f" that matches {project.issues}.",
            )
        try:
            expires = date.fromisoformat(fields["expires"])
        except ValueError:
            self._problem(
                line,
                f"disabled expires {shown(fields['expires'])}; write a day such as 2026-12-31.",
            )
            return None
        if expires < self._today:
            self._problem(
                line,
                f"disabled expired on {expires}; {fields['owner']} must enable the test again,"
                f" remove it, or renew the date with the reason in {fields['issue']}.",
            )
        most = project.max_disabled_days
        if most is not None and expires > self._today + timedelta(days=most):
            self._problem(
                line,
                f"disabled expires on {expires}, more than {most} days ahead;"
                " choose an earlier day (project.max_disabled_days in ci.toml).",
            )
        return Disabled(fields["reason"], fields["issue"], fields["owner"], expires)


def finite(value: object) -> float | None:
    """The value as a finite number; None for anything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def check_keywords(call: Call, allowed: Collection[str], tell: Tell) -> None:
    """Tell of every keyword that a call may not have."""
    for key in call.values:
        if key not in allowed:
            tell(call.line_of(key), f"{call.name} has no keyword {key!r}; {known(key, allowed)}")


def is_below(path: str, folder: str) -> bool:
    """Whether a path lies in a folder; `.` holds everything."""
    return folder == "." or path.startswith(f"{folder}/")
