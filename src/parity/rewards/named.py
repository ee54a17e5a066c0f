"""Whether a reward function is where the run file says, told without running any of its code.

Used by `config/arithmetic.py`, so that a wrong name is refused before a model is loaded. Only what
is certain is refused: a module that makes its names at run time is left to the grader process,
which imports it.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from parity.errors import ConfigError
from parity.registry import known
from parity.rewards.config import PythonRewardConfig

_NAME_MAKERS = ("globals", "vars", "exec", "setattr")


def check_function(config: PythonRewardConfig, *, at: str) -> None:
    """Refuse (ConfigError) a function that isn't there; `at` is the section of the run file."""
    where, _, name = config.function.rpartition(":")
    path = Path(where) if where.endswith(".py") else _module_file(where, at)
    if path is None:
        return
    if not path.is_file():
        raise ConfigError(
            f"{at}.function is {config.function!r}, but there is no file {path.absolute()}; paths"
            " start from the working directory."
        )
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{at}.function is {config.function!r}, and {path} isn't Python ({error}); correct it."
        ) from error
    names = list(_names(body))
    if "*" in names or "__getattr__" in names or name in names:
        return
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    raise ConfigError(
        f"{at}.function is {config.function!r}, but there is no {name!r} in it;"
        f" {known(name, functions)}"
    )


def _module_file(module: str, at: str) -> Path | None:
    """The source of a module; None where there is none to read. Parents aren't imported."""
    path: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    spec: ModuleSpec | None = None
    for number in range(1, len(parts := module.split(".")) + 1):
        name = ".".join(parts[:number])
        if path is None:
            spec = None
        elif name in sys.builtin_module_names:
            return None
        else:
            spec = _spec(name, path)
        if spec is None:
            raise ConfigError(
                f"{at}.function names the module {module!r}, and there is no {name!r} to import"
                f" from {Path.cwd()}; correct the name, install the package, or give a path to a"
                " .py file."
            )
        path = spec.submodule_search_locations
    assert spec is not None, "a name has at least one part"
    is_source = spec.origin is not None and spec.origin.endswith(".py")
    return Path(spec.origin) if is_source and spec.origin is not None else None


def _spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    for finder in sys.meta_path:
        spec = finder.find_spec(name, path)
        if spec is not None:
            return spec
    return None


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    """What a module's statements may name, those inside of `if`, `try` and the like too."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.alias):
                yield (node.asname or node.name).partition(".")[0]
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Global):
                yield from node.names
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield "*" if node.func.id in _NAME_MAKERS else ""
