"""The rules of the source tree, each a function from a tree to the list of what breaks it.

`test_architecture.py` holds them against the package, `test_rules.py` against planted faults.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from parity.observe.names import TABLE, find

# A module may import names at or before its own place. The longest prefix named here counts.
# The contract of engines stands before weights, whose transports speak to engines through it.
ORDER = """
errors types registry checks recipes folder
algorithms.config models.config rewards.config tasks.config engines.config ledger.config
rollouts.config training.config supervise.config runtime.config
supervise.waits observe.metric observe.names observe.timer observe.encode
platforms algorithms models weights.manifest engines.engine weights tools rewards environments
tasks engines ledger rollouts training runtime observe supervise config
starts evaluation roles parts run runtime.ray build sft loop ending launch sft.command replay
measure doctor cluster ci cli
""".split()
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_FOLDER_FILES = 400, 60, 15
VAGUE = re.compile(
    r"(^|[._])(utils?|common|misc|helpers?|core|base|hub|managers?|experimental|v\d+)($|[._])"
)
ENVIRONMENT_CALLS = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
METRIC = re.compile(r"(train|rollout|time|buffer|eval|publish|device|router)/[a-z0-9_*]+")
METRIC_START = re.compile(r"(train|rollout|time|buffer|eval|publish|device|router)/[a-z0-9_]*")


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name below the package (`""` for the package itself)."""

    name: str
    path: Path

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.source)))

    def is_in(self, *places: str) -> bool:
        """Whether the module is one of these, or below one of them."""
        return any(self.name == place or self.name.startswith(f"{place}.") for place in places)


class Tree:
    """The modules of a package folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules = [Module(self._name(path), path) for path in sorted(root.rglob("*.py"))]
        self.names = {module.name for module in self.modules}

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.root).with_suffix("").parts
        return ".".join(part for part in parts if part != "__init__")

    def imported(self, node: ast.AST) -> Iterator[str]:
        """The modules of this package that an import statement reaches, by dotted name."""
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from parity.a import b` reaches the module parity.a.b where there is one.
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            return
        for dotted in wanted:
            package, _, name = dotted.partition(".")
            if package == "parity":
                yield name if name in self.names else name.rpartition(".")[0]


def place(name: str) -> int | None:
    """Where the longest prefix of `name` that ORDER has stands."""
    parts = name.split(".")
    prefixes = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((ORDER.index(prefix) for prefix in prefixes if prefix in ORDER), None)


def forward_imports(tree: Tree) -> list[str]:
    """Imports of what comes later, TYPE_CHECKING ones included, and modules without a place."""
    wrong = [
        f"{module.name} has no place in the reading order"
        for module in tree.modules
        if module.name and place(module.name) is None
    ]
    for module in tree.modules:
        own = -1 if not module.name else place(module.name)
        for node in module.nodes:
            for target in tree.imported(node):
                other = place(target) if target else -1
                if own is not None and other is not None and other > own:
                    line = getattr(node, "lineno", 0)
                    wrong.append(f"{module.name}:{line} imports {target}, which comes later")
    return wrong


def oversized(tree: Tree) -> list[str]:
    """Files, functions and folders that hold more than one idea; an index isn't counted."""
    wrong: list[str] = []
    folders: dict[Path, int] = {}
    for module in tree.modules:
        if module.path.name != "__init__.py":
            folders[module.path.parent] = folders.get(module.path.parent, 0) + 1
        lines = module.source.count("\n")
        if lines > MAX_FILE_LINES:
            wrong.append(f"{module.name}: {lines} lines, at most {MAX_FILE_LINES}")
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    wrong.append(f"{module.name}.{node.name}: {lines} lines")
    for folder, count in folders.items():
        if count > MAX_FOLDER_FILES:
            wrong.append(f"{folder.name}/: {count} files, at most {MAX_FOLDER_FILES}")
    return wrong


def vague_names(tree: Tree) -> list[str]:
    """Modules whose name says nothing."""
    return [module.name for module in tree.modules if VAGUE.search(module.name)]


def environment_readers(tree: Tree) -> list[str]:
    """Uses of environment variables outside `config/environment.py` and `platforms`."""
    wrong: list[str] = []
    for module in tree.modules:
        if module.is_in("config.environment", "platforms"):
            continue
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                is_use = node.value.id == "os" and node.attr in ENVIRONMENT_CALLS
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                is_use = any(alias.name in ENVIRONMENT_CALLS for alias in node.names)
            else:
                continue
            if is_use:
                wrong.append(f"{module.name}:{node.lineno} uses environment variables")
    return wrong


def undeclared_metrics(tree: Tree) -> list[str]:
    """Strings that look like `area/name` and aren't in the table of `observe/names.py`."""
    wrong: list[str] = []
    for module in tree.modules:
        if module.is_in("observe.names"):
            continue
        parts = {
            id(value)
            for node in module.nodes
            if isinstance(node, ast.JoinedStr)
            for value in node.values
        }
        for node in module.nodes:
            if id(node) in parts:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value
                is_wrong = METRIC.fullmatch(name) and find(name.replace("*", "x")) is None
            elif isinstance(node, ast.JoinedStr):
                name = _start(node)
                is_wrong = METRIC_START.fullmatch(name) and not _begins_a_metric(name)
            else:
                continue
            if is_wrong:
                wrong.append(f"{module.name}:{node.lineno} records {name}, which isn't declared")
    return wrong


def _start(node: ast.JoinedStr) -> str:
    """The text in front of the first value of an f-string."""
    first = node.values[0] if len(node.values) > 1 else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _begins_a_metric(start: str) -> bool:
    return find(f"{start}x") is not None or any(each.name.startswith(start) for each in TABLE)
