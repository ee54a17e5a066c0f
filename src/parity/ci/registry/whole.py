"""Checks that need more than one file: case tables and hardware variants.

Used by `discovery.py`. A variant `test_<prefix>_<name>.py` runs on the backend of its prefix and on
no other; where the original `test_<name>.py` lies beside it, the original leaves that backend to
the variant, and both name the same case table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from parity.ci.case_table import load_cases
from parity.ci.cases import Case
from parity.ci.config import Backend, Config
from parity.ci.model import Registration, TestFile
from parity.ci.registry.problems import Problem
from parity.errors import ConfigError


def with_cases(files: Sequence[TestFile], config: Config) -> tuple[list[TestFile], list[Problem]]:
    """The files with the cases of their tables, and what is wrong in the tables."""
    tables: dict[str, tuple[Case, ...]] = {}
    problems: list[Problem] = []
    for table in sorted({file.case_table for file in files if file.case_table is not None}):
        try:
            tables[table] = load_cases(config.root / table)
        except ConfigError as error:
            place, _, text = str(error).removeprefix(f"{config.root}/").partition(": ")
            path, _, line = place.rpartition(":")
            problems.append(Problem(path, int(line), text))
    filled = [
        replace(file, cases=tables.get(file.case_table, ())) if file.case_table else file
        for file in files
    ]
    return filled, problems


def whole_problems(files: Sequence[TestFile], config: Config) -> list[Problem]:
    """Cases that don't fit a suite's devices, and variants that break their rule."""
    by_path = {file.path: file for file in files}
    problems: list[Problem] = []
    for file in files:
        for registration in file.registrations:
            problems.extend(_misfits(file, registration, config))
        problems.extend(_variant_problems(file, by_path, config))
    return problems


def _misfits(file: TestFile, registration: Registration, config: Config) -> Iterator[Problem]:
    devices = config.suites[registration.suite].devices
    for case in file.cases:
        if not devices:
            continue
        try:
            case.fit(devices)
        except ConfigError as error:
            text = f"on {registration.suite} with {devices} devices: {error}"
            yield Problem(file.path, registration.line, text)


def variant_of(path: str, backends: Mapping[str, Backend]) -> tuple[Backend, str] | None:
    """The backend of which a file is a variant, and the path of the original; else None."""
    folder, _, name = path.rpartition("/")
    for backend in backends.values():
        prefix = f"test_{backend.variant}_"
        if backend.variant is not None and name.startswith(prefix):
            original = f"test_{name.removeprefix(prefix)}"
            return backend, f"{folder}/{original}" if folder else original
    return None


def _variant_problems(
    file: TestFile, by_path: Mapping[str, TestFile], config: Config
) -> Iterator[Problem]:
    found = variant_of(file.path, config.backends)
    if found is None:
        return
    backend, original_path = found
    for each in file.registrations:
        if each.backend != backend.name:
            yield Problem(
                file.path,
                each.line,
                f"is a variant for {backend.name} and registers on {each.backend}; that belongs"
                f" into {original_path}.",
            )
    original = by_path.get(original_path)
    if original is None:
        return
    for each in original.registrations:
        if each.backend == backend.name:
            text = f"registers on {backend.name}, where its variant {file.path} runs; keep one."
            yield Problem(original.path, each.line, text)
    if file.case_table is None or file.case_table != original.case_table:
        yield Problem(
            file.path,
            file.registrations[0].line,
            f"is a variant of {original_path} and must share its case table: register_ci_cases in"
            f" both ({file.case_table or 'none'} here, {original.case_table or 'none'} there).",
        )
