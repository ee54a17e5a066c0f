"""Reads one test file: text in, `TestFile` and problems out. Nothing is imported or run.

Used by `discovery.py`. Invariant: a pure function of text, path, configuration and day.
"""

import ast
import hashlib
from dataclasses import dataclass
from datetime import date
from pathlib import PurePosixPath

from parity.ci.config import Config, Implicit
from parity.ci.model import GateRegistration, Registration, TestFile
from parity.ci.registry import outline
from parity.ci.registry.arguments import ArgumentReader, Tell, check_keywords, is_below
from parity.ci.registry.branches import branch_problems
from parity.ci.registry.calls import Call, CallReader
from parity.ci.registry.gates import gate
from parity.ci.registry.problems import Problem

GATE, CASES = "register_ci_gate", "register_ci_cases"


@dataclass(frozen=True, slots=True)
class Read:
    """What one file gave: the file where it is of use, and what is wrong in it."""

    file: TestFile | None
    problems: tuple[Problem, ...]


def function_names(config: Config) -> dict[str, str]:
    """The registering functions by name, each with its backend; for the known backends only."""
    return {f"register_{name}_ci": name for name in config.backends}


def read_test(text: str, path: str, config: Config, today: date) -> Read:
    """What a test file says of itself; `path` is relative to the root, with `/`."""
    try:
        return _read(text, path, config, today)
    except (RecursionError, MemoryError):
        return Read(None, (Problem(path, 1, "is nested too deeply to be read; simplify it."),))


def _read(text: str, path: str, config: Config, today: date) -> Read:
    reader = _FileReader(path, config, today)
    calls: list[Call] = []
    if outline.mentions(text):
        try:
            tree = parse(text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            return Read(None, (Problem(path, line, f"isn't valid Python ({error})."),))
        found = CallReader(path, [*function_names(config), GATE, CASES])
        calls = found.read(tree)
        reader.problems.extend(found.problems)
    reader.problems.extend(branch_problems(text, path, config))
    file = reader.read(calls, text)
    return Read(file, tuple(reader.problems))


def parse(text: str) -> ast.Module:
    """The tree of the statements that can register a file, at their own lines."""
    short = outline.outline(text)
    if short is not None:
        try:
            return ast.parse(short)
        except SyntaxError:
            pass
    return ast.parse(text)


class _FileReader:
    """Puts the calls of one file together; whatever is wrong goes to `problems`."""

    def __init__(self, path: str, config: Config, today: date) -> None:
        self.problems: list[Problem] = []
        self._path = path
        self._config = config
        self._arguments = ArgumentReader(config, path, today, self.tell)

    def tell(self, line: int, sentence: str) -> None:
        self.problems.append(Problem(self._path, line, sentence))

    def read(self, calls: list[Call], text: str) -> TestFile | None:
        registrations = self._registrations(calls)
        names = [each.backend for each in registrations]
        found = [gate(call, self._path, names, self.tell) for call in calls if call.name == GATE]
        gates = [each for each in found if each is not None]
        _check_gates(gates, self.tell)
        table = _table([call for call in calls if call.name == CASES], self._path, self.tell)
        if self.problems or not registrations:
            return None
        digest = hashlib.sha256(text.encode()).hexdigest()
        return TestFile(self._path, digest, tuple(registrations), tuple(gates), table)

    def _registrations(self, calls: list[Call]) -> list[Registration]:
        backends = function_names(self._config)
        own = [call for call in calls if call.name in backends]
        implicit = [each for each in self._config.implicit if is_below(self._path, each.folder)]
        if not own and implicit:
            return [_implied(self._path, implicit[0], self._config)]
        if not own and not self.problems:
            self.tell(
                1, f"has no registration; call one of {', '.join(backends)} at the top level."
            )
        made = [
            self._arguments.registration(call, self._config.backends[backends[call.name]])
            for call in own
        ]
        registrations = [each for each in made if each is not None]
        _check_duplicates(registrations, self.tell)
        return registrations


def _implied(path: str, implicit: Implicit, config: Config) -> Registration:
    return Registration(
        path=path,
        line=1,
        backend=config.suites[implicit.suite].backend,
        suite=implicit.suite,
        est_time_s=implicit.est_time_s,
        labels=implicit.labels,
        is_implicit=True,
    )


def _check_duplicates(registrations: list[Registration], tell: Tell) -> None:
    seen: dict[tuple[str, str], int] = {}
    for each in registrations:
        key = (each.backend, each.suite)
        if key in seen:
            tell(
                each.line,
                f"is registered on {each.suite} twice, first in line {seen[key]}; keep one.",
            )
        seen.setdefault(key, each.line)


def _check_gates(gates: list[GateRegistration], tell: Tell) -> None:
    seen: dict[tuple[str, object, object], int] = {}
    for each in gates:
        key = (each.metric_key, each.steps, each.backends)
        if key in seen:
            tell(
                each.line,
                f"gates {each.metric_key} twice, first in line {seen[key]}; keep one.",
            )
        seen.setdefault(key, each.line)


def _table(calls: list[Call], path: str, tell: Tell) -> str | None:
    """The path of the case table that a file names; it lies in the same folder."""
    if not calls:
        return None
    if len(calls) > 1:
        tell(calls[1].line, f"names a case table twice, first in line {calls[0].line}; keep one.")
    call = calls[0]
    check_keywords(call, ("table",), tell)
    name = call.values.get("table")
    if not isinstance(name, str) or not name.endswith(".py") or "/" in name or "\\" in name:
        tell(
            call.line_of("table"),
            f"table is {name!r}; it must be the name of a .py file in the same folder.",
        )
        return None
    return str(PurePosixPath(path).with_name(name))
