"""Refuses tests that branch on the hardware: a variant is a file of its own.

Used by `reading.py`. What counts as asking for hardware is data of the repository
(`forbidden_branches` of a backend in ci.toml).
"""

import ast

from parity.ci.config import Config
from parity.ci.registry.problems import Problem

BRANCHES = (ast.If, ast.IfExp, ast.While)


def branch_problems(text: str, path: str, config: Config) -> list[Problem]:
    """A problem for each `if` whose condition asks for a name that ci.toml forbids there."""
    markers = {
        marker: backend
        for backend in config.backends.values()
        for marker in backend.forbidden_branches
        if marker.rpartition(".")[2] in text
    }
    if not markers:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the file fails where it runs, and where it registers it is refused already
    problems: list[Problem] = []
    for node in ast.walk(tree):
        if not isinstance(node, BRANCHES):
            continue
        asked = {_dotted(each) for each in ast.walk(node.test)}
        for marker, backend in markers.items():
            if any(name == marker or name.endswith(f".{marker}") for name in asked):
                own = f"test_{backend.variant or backend.name}_<name>.py"
                text = (
                    f"branches on {marker}; a hardware variant is a file of its own ({own}) that"
                    " shares a case table (register_ci_cases)."
                )
                problems.append(Problem(path, node.lineno, text))
    return problems


def _dotted(node: ast.AST) -> str:
    """`torch.version.hip` of that expression; what is no name ends the names before it."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))
