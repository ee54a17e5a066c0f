"""Reads a case table as text: `CASES = [Case(...), ...]` with literal arguments.

Used by the plan, which runs nothing, and by hardware tests, so that both see the same cases.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from parity.ci.cases import AXES, Case
from parity.ci.text import read_python, shown
from parity.errors import ConfigError
from parity.registry import known

KEYWORDS = ("name", "devices", *AXES, "at")
MOST = 2**31  # devices


def load_cases(path: Path, *, devices: int | None = None) -> tuple[Case, ...]:
    """The cases of a table, fitted to `devices` where given. Raises ConfigError with the line."""
    try:
        text = read_python(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}:1: the case table can't be read ({error}).") from error
    cases = read_cases(text, str(path))
    return cases if devices is None else tuple(case.fit(devices) for case in cases)


def read_cases(text: str, path: str) -> tuple[Case, ...]:
    """The cases in the text of a table; `path` is its name in errors."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise ConfigError(f"{path}:{line}: the case table isn't valid Python ({error}).") from error
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_cases(node):
            if not isinstance(node.value, ast.List | ast.Tuple) or not node.value.elts:
                raise ConfigError(f"{path}:{node.lineno}: CASES must be a list of Case(...) calls.")
            cases = tuple(_case(each, path) for each in node.value.elts)
            _check_names(cases, f"{path}:{node.lineno}")
            return cases
    raise ConfigError(f"{path}:1: the case table has no top-level CASES = [Case(...), ...].")


def _is_cases(node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(_is_name(target, "CASES") for target in targets)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _case(node: ast.expr, path: str) -> Case:
    where = f"{path}:{node.lineno}"
    if not isinstance(node, ast.Call) or not _is_name(node.func, "Case") or node.args:
        raise ConfigError(f"{where}: an item of CASES must be Case(keyword=literal, ...).")
    values: dict[str, object] = {}
    for word in node.keywords:
        if word.arg is None or word.arg not in KEYWORDS:
            raise ConfigError(
                f"{where}: Case has no {word.arg!r}; {known(str(word.arg), KEYWORDS)}"
            )
        try:
            values[word.arg] = ast.literal_eval(word.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            raise ConfigError(f"{where}: {word.arg} of Case must be a literal.") from error
    return _checked(values, where)


def _checked(values: Mapping[str, object], where: str) -> Case:
    name, at = values.get("name"), values.get("at", {})
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: Case needs name='...'.")
    if "devices" not in values:
        raise ConfigError(f"{where}: case {name!r} needs devices=, the ranks it is made for.")
    if not _is_restated(at):
        raise ConfigError(f"{where}: at of case {name!r} must look like {{4: {{'ep': 2}}}}.")
    for key, value in values.items():
        if key not in ("name", "at") and not _is_count(value):
            raise ConfigError(f"{where}: {key} of case {name!r} is {shown(value)}; a number >= 1.")
    counts = {key: cast("int", values[key]) for key in ("devices", *AXES) if key in values}
    try:
        return Case(name=name, at=cast("Mapping[int, Mapping[str, int]]", at), **counts)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _is_restated(at: object) -> bool:
    """Whether it maps numbers of devices to sizes of axes."""
    if not isinstance(at, dict):
        return False
    for devices, axes in cast("Mapping[object, object]", at).items():
        if not _is_count(devices) or not isinstance(axes, dict):
            return False
        if not all(map(_is_count, cast("Mapping[object, object]", axes).values())):
            return False
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < MOST


def _check_names(cases: tuple[Case, ...], where: str) -> None:
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            raise ConfigError(f"{where}: CASES has {shown(case.name)} twice; names must differ.")
        seen.add(case.name)
