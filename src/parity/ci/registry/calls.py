"""Finds the registering calls of a parsed test file and reads their arguments as literals.

Used by `reading.py`. Only a top-level statement that is nothing but `register_..._ci(...)`, under
the name it was imported by, counts; every other use of such a name is a problem, because it
would look like a registration to a reader and be none.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from parity.ci.registry.outline import NAME
from parity.ci.registry.problems import Problem
from parity.ci.text import source
from parity.registry import known

POSITIONAL = ("est_time", "suite")
MOST_CALLS = 200  # of one file


@dataclass
class Call:
    """One registering call: its arguments as values, each with the line it stands on."""

    name: str
    line: int
    values: dict[str, object] = field(default_factory=dict[str, object])
    lines: dict[str, int] = field(default_factory=dict[str, int])

    def line_of(self, key: str) -> int:
        """The line of an argument, or of the call where it has none."""
        return self.lines.get(key, self.line)


class CallReader:
    """Reads the registering calls of one file; what is wrong goes to `problems`."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        """`names` are the functions that exist."""
        self.path = path
        self.problems: list[Problem] = []
        self._names = names

    def read(self, tree: ast.Module) -> list[Call]:
        """The registering calls in the order of the file."""
        found: list[tuple[ast.Call, str]] = []
        rest: list[ast.AST] = []  # arguments of calls are literals: they name nothing
        for statement in tree.body:
            node = statement.value if isinstance(statement, ast.Expr) else None
            name = _called(node)
            if not isinstance(node, ast.Call) or name is None:
                rest.extend(ast.walk(statement))
            else:
                found.append((node, name))
        if len(found) > MOST_CALLS:
            text = f"registers {len(found)} times; at most {MOST_CALLS} calls are read."
            self._problem(found[MOST_CALLS][0].lineno, text)
        made = [self._call(node, name) for node, name in found[:MOST_CALLS]]
        calls = [call for call in made if call is not None]
        imported = self._imports(rest)
        for node in _names(rest):
            self._misused(node)
        for call in calls:
            if call.name not in imported:
                self._problem(
                    call.line,
                    f"{call.name} isn't imported by name; write `from parity.ci.register import"
                    f" {call.name}`.",
                )
        return calls

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(Problem(self.path, line, text))

    def _imports(self, nodes: Iterable[ast.AST]) -> set[str]:
        """The registering names that the file imports; an alias is a problem."""
        found: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if NAME.fullmatch(alias.name):
                        found.add(alias.name)
                        if alias.asname not in (None, alias.name):
                            self._problem(
                                node.lineno,
                                f"{alias.name} is imported as {alias.asname}; registrations are"
                                " read from the text, so import it under its own name.",
                            )
        return found

    def _misused(self, node: ast.AST) -> None:
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Attribute):
            self._problem(
                line,
                f"{source(node)} is called through another name; import {node.attr} and"
                " call it by its bare name at the top level.",
            )
        elif isinstance(node, ast.Name):
            self._problem(
                line,
                f"{node.id} is used inside another statement or under another name; a"
                " registration is a statement of its own at the top level of the file.",
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._problem(line, f"{node.name} is defined here; import it from parity.ci.register.")

    def _call(self, node: ast.Call, name: str) -> Call | None:
        if name not in self._names:
            self._problem(node.lineno, f"{name} is unknown; {known(name, self._names)}")
            return None
        call = Call(name, node.lineno)
        is_gate = name.startswith("register_ci_")
        positional = () if is_gate else POSITIONAL
        if len(node.args) > len(positional):
            what = " and ".join(positional) or "nothing"
            extra = node.args[len(positional)]
            self._problem(extra.lineno, f"{name} takes {what} by position, the rest by keyword.")
            return None
        pairs = [(key, value) for key, value in zip(positional, node.args, strict=False)]
        for word in node.keywords:
            if word.arg is None:
                self._problem(
                    word.value.lineno,
                    f"{name} has **; every argument must be written as keyword=literal.",
                )
                return None
            pairs.append((word.arg, word.value))
        good = [self._argument(call, key, value) for key, value in pairs]  # tell of each
        return call if all(good) else None

    def _argument(self, call: Call, key: str, value: ast.expr) -> bool:
        if isinstance(value, ast.Starred):
            self._problem(value.lineno, f"{call.name} has *; every argument must be a literal.")
            return False
        if key in call.values:
            self._problem(value.lineno, f"{call.name} gets {key} twice; give it once.")
            return False
        try:
            call.values[key] = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            self._problem(
                value.lineno,
                f"{key} of {call.name} is `{source(value)}`; it must be a literal,"
                " because the file is read and never run.",
            )
            return False
        call.lines[key] = value.lineno
        return True


def _called(node: ast.expr | None) -> str | None:
    """The registering name that an expression calls, if that is all it does."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id if NAME.fullmatch(node.func.id) else None
    return None


def _names(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node that carries a registering name, imports excepted."""
    for node in nodes:
        if isinstance(node, ast.Name):
            carried = node.id
        elif isinstance(node, ast.Attribute):
            carried = node.attr
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            carried = node.name
        else:
            continue
        if NAME.fullmatch(carried):
            yield node
