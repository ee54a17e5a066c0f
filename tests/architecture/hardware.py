"""The rule that names of vendors and devices appear in `platforms/` and nowhere else.

It reads the syntax tree, not the text: strings (f-strings too), attributes, variables, arguments,
functions, classes and imports, each split into words, so that `is_npu_available`, `"cuda:0"`,
f"{kind}_cuda" and CUDA_VISIBLE_DEVICES are found and "ascending" isn't. Docstrings and comments
are prose and may name what they like. A line is exempt if it ends with the comment
`# hardware name: why`; an exemption without a reason, or on a line that needs none, is a finding
too.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from architecture.rules import Module, Tree

HOME = "platforms"
DEVICES = {"cuda", "rocm", "hip", "npu", "xpu", "mps", "musa", "mlu", "hpu"}
VENDORS = {"nvidia", "amd", "huawei", "ascend", "intel", "habana", "cambricon", "metax"}
LIBRARIES = {"nccl", "rccl", "hccl", "cann", "nvml", "nvtx", "roctx", "cudnn", "aiter", "rocr"}
TOOLS = {"pynvml", "amdsmi"}
HARDWARE = DEVICES | VENDORS | LIBRARIES | TOOLS
PROCESSOR = re.compile(r"amd64|intel64", re.IGNORECASE)  # names of a CPU architecture
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
SAYS: dict[type[ast.AST], tuple[str, ...]] = {  # where a node keeps its name
    ast.Attribute: ("attr",),
    ast.Name: ("id",),
    ast.arg: ("arg",),
    ast.keyword: ("arg",),
    ast.alias: ("name", "asname"),
    ast.ImportFrom: ("module",),
    ast.FunctionDef: ("name",),
    ast.AsyncFunctionDef: ("name",),
    ast.ClassDef: ("name",),
    ast.MatchAs: ("name",),
    ast.MatchStar: ("name",),
}
MARK = "# hardware name"
EXEMPTION = re.compile(r"# hardware name:\s*(\S.*)")


def hardware_names(tree: "Tree") -> list[str]:
    """Lines outside `platforms` that name hardware, and exemptions that hold for nothing."""
    wrong: list[str] = []
    for module in tree.modules:
        if not module.is_in(HOME):
            wrong += _in_module(module)
    return wrong


def _in_module(module: "Module") -> Iterator[str]:
    comments = _comments(module.source)
    reasons = {line: EXEMPTION.search(text) for line, text in comments.items() if MARK in text}
    used: set[int] = set()
    found: dict[int, set[str]] = {}
    for node, text in _named(module):
        names = words(text) & HARDWARE
        if not names:
            continue
        covered = [line for line in _lines(node) if line in reasons]
        used |= set(covered)
        if not any(reasons[line] for line in covered):
            found.setdefault(_lines(node)[0], set()).update(names)
    for line, names in sorted(found.items()):
        yield (
            f"{module.name}:{line} names {', '.join(sorted(names))}; ask the platform for a"
            f" capability, or end the line with `{MARK}: why it must be here`"
        )
    for line in sorted(reasons):
        if line not in used:
            yield f"{module.name}:{line} is exempt and names no hardware; take the comment away"
        elif reasons[line] is None:
            yield f"{module.name}:{line} is exempt without a reason; say why after `{MARK}:`"


def words(text: str) -> set[str]:
    """The words of an identifier or a sentence, in lower case: `isCudaNPU_x` has cuda and npu."""
    return {word.lower() for word in WORD.findall(PROCESSOR.sub(" ", text))}


def _named(module: "Module") -> Iterator[tuple[ast.AST, str]]:
    """Every place of a module that says a name, with what it says."""
    prose = _docstrings(module)
    for node in module.nodes:
        if isinstance(node, ast.Constant) and id(node) not in prose:
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str):
                yield node, text
        for kind, fields in SAYS.items():
            if isinstance(node, kind):
                said = [getattr(node, field) for field in fields]
                yield node, " ".join(name for name in said if name)


def _docstrings(module: "Module") -> set[int]:
    """The strings that stand alone as a statement: documentation of what is before or around."""
    return {
        id(node.value)
        for node in module.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _lines(node: ast.AST) -> range:
    """The lines of a node; of a function, a class or an import only the first."""
    first = getattr(node, "lineno", 0)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ImportFrom):
        return range(first, first + 1)
    if isinstance(node, ast.Attribute):  # the name stands at the end of what it is taken from
        first = node.end_lineno or first
    return range(first, (getattr(node, "end_lineno", None) or first) + 1)


def _comments(source: str) -> dict[int, str]:
    """The comment of each line that has one."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
