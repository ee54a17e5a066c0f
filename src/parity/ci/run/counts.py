"""How many tests ran inside one file: from the runner's own report, or from its source.

pytest is told to write its report; a plain script has none, but a script that defines test
functions and never calls anything ends with 0 without testing, which must not look like a pass.
"""

import ast
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from parity.ci.run.result import Counts

_MAX_REPORT_BYTES = 32 * 1024**2
_MODULE = ("-m", "pytest")


def is_pytest(argv: Sequence[str]) -> bool:
    """Whether a command runs pytest."""
    return _MODULE in pairwise(argv) or (
        len(argv) > 0 and Path(argv[0]).name in ("pytest", "py.test")
    )


def with_report(argv: Sequence[str], report_path: Path) -> list[str]:
    """The command, told to write its report where it is pytest."""
    return [*argv, f"--junitxml={report_path}"] if is_pytest(argv) else list(argv)


def read_counts(argv: Sequence[str], report_path: Path, test_path: Path) -> Counts | None:
    """The tests that ran, after a command has ended; None where nobody tells."""
    if is_pytest(argv):
        return _of_report(report_path)
    return Counts(0, 0, 0) if _never_begins(test_path) else None


def _of_report(path: Path) -> Counts | None:
    try:
        if path.stat().st_size > _MAX_REPORT_BYTES:
            return None
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None  # it was killed before it wrote one
    cases = list(root.iter("testcase"))
    failed = sum(c.find("failure") is not None or c.find("error") is not None for c in cases)
    skipped = sum(c.find("skipped") is not None for c in cases)
    return Counts(len(cases) - failed - skipped, failed, skipped)


def _never_begins(path: Path) -> bool:
    """Whether the script has test functions or classes and no statement that runs anything."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    has_tests = any(
        (isinstance(node, functions) and node.name.startswith("test"))
        or (isinstance(node, ast.ClassDef) and node.name.startswith("Test"))
        for node in body
    )
    return has_tests and not any(_runs(node) for node in body)


def _runs(node: ast.AST) -> bool:
    """Whether a statement calls or raises something; definitions and registrations don't."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        return not (isinstance(called, ast.Name) and called.id.startswith("register_"))
    return isinstance(node, ast.Raise) or any(map(_runs, ast.iter_child_nodes(node)))
