"""Versions of the outside stack, and the names and endpoints that Parity uses in it.

Read from the installed files, without importing a library: an import can take seconds, load a
vendor's runtime, or crash on a mismatched build. A name is present where its module defines or
imports it at the top (or its class does), missing where the module can't get it from anywhere,
and unknown where it may come by a star import, a module's `__getattr__` or a compiled file. An
endpoint is present where the server's source has its path. Invariant: nothing raises.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from parity.doctor.report import Finding, Library, Presence, Symbol

AREA = "libraries"


@dataclass(frozen=True, slots=True)
class Need:
    """What Parity uses of one library."""

    distribution: str
    is_required: bool
    used_for: str
    names: tuple[tuple[str, str], ...] = ()  # ("module:attribute", what for)
    endpoints: tuple[str, ...] = ()  # paths of an HTTP server
    server: str = ""  # the module that has the endpoints


NEEDS = (
    Need(
        "torch",
        is_required=True,
        used_for="everything",
        names=(
            ("torch.nn.utils:get_total_norm", "gradient norm over ranks"),
            ("torch.nn.utils:clip_grads_with_norm_", "gradient clipping over ranks"),
            ("torch.distributed.tensor:DTensor", "sharded parameters"),
            ("torch.distributed.fsdp:fully_shard", "sharded training"),
            ("torch.distributed.device_mesh:init_device_mesh", "sharded training"),
            ("torch.distributed.checkpoint.state_dict_saver:save", "checkpoints"),
            ("torch.distributed.checkpoint.state_dict_loader:load", "checkpoints"),
        ),
    ),
    Need(
        "transformers",
        is_required=True,
        used_for="models and tokenizers",
        names=(
            ("transformers.cache_utils:Cache", "the embedded engine"),
            ("transformers.cache_utils:CacheLayerMixin", "the embedded engine"),
        ),
    ),
    Need("safetensors", is_required=True, used_for="reading and writing weights"),
    Need("psutil", is_required=True, used_for="telemetry of the host"),
    Need(
        "ray",
        is_required=False,
        used_for="runs over several processes and nodes",
        names=(
            ("ray.util.placement_group:placement_group", "placing roles"),
            (
                "ray.util.scheduling_strategies:PlacementGroupSchedulingStrategy",
                "placing roles",
            ),
        ),
    ),
    Need(
        "vllm",
        is_required=False,
        used_for="a vLLM engine, which Parity doesn't drive yet",
        names=(
            ("vllm.v1.engine.async_llm:AsyncLLM.generate", "tokens"),
            ("vllm.v1.engine.async_llm:AsyncLLM.collective_rpc", "publishing weights"),
            ("vllm.v1.engine.async_llm:AsyncLLM.pause_generation", "publishing weights"),
            ("vllm.v1.engine.async_llm:AsyncLLM.resume_generation", "publishing weights"),
            ("vllm.v1.engine.async_llm:AsyncLLM.sleep", "sharing devices"),
        ),
    ),
    Need(
        "sglang",
        is_required=False,
        used_for="an SGLang engine, which Parity doesn't drive yet",
        endpoints=(
            "/generate",
            "/abort_request",
            "/pause_generation",
            "/continue_generation",
            "/update_weights_from_tensor",
            "/release_memory_occupation",
            "/resume_memory_occupation",
        ),
        server="sglang.srt.entrypoints.http_server",
    ),
)


def examine(needs: Sequence[Need] = NEEDS) -> tuple[list[Library], list[Finding]]:
    """Every library that Parity uses, whether it is installed or not."""
    libraries = [look_at(need) for need in needs]
    return libraries, [finding for library in libraries for finding in _findings(library)]


def look_at(need: Need) -> Library:
    """One library: its version, and what Parity uses in it."""
    found = installed_version(need.distribution)
    symbols: list[Symbol] = []
    if found is not None:
        symbols = [Symbol(name, presence(name), what) for name, what in need.names]
        symbols += [
            Symbol(path, endpoint_presence(need.server, path), need.used_for)
            for path in need.endpoints
        ]
    return Library(need.distribution, found, need.is_required, need.used_for, tuple(symbols))


def installed_version(distribution: str) -> str | None:
    """The version of a distribution; None where it isn't installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def presence(name: str) -> Presence:
    """Whether `module:attribute` (or `module:Class.member`) is there, without importing it."""
    module, _, attribute = name.partition(":")
    path = module_file(module)
    if path is None:
        return "missing"
    if path.suffix != ".py":
        return "unknown"
    tree = _parse(path)
    return "unknown" if tree is None else _in_body(tree.body, attribute.split("."))


def endpoint_presence(module: str, endpoint: str) -> Presence:
    """Whether the source of a server has this path as a string."""
    path = module_file(module)
    tree = None if path is None or path.suffix != ".py" else _parse(path)
    if tree is None:
        return "unknown"
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return "present" if endpoint in strings else "missing"


def module_file(module: str) -> Path | None:
    """The file of a module, found below its top package, which isn't imported."""
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return None if spec.origin is None else Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *rest)
        names = [place / "__init__.py", place.with_suffix(".py")]
        names += [place.with_name(place.name + suffix) for suffix in EXTENSION_SUFFIXES]
        for path in names:
            if path.is_file():
                return path
    return None


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _in_body(body: Sequence[ast.stmt], names: Sequence[str]) -> Presence:
    """Whether these statements bind the first name, and it has the rest."""
    name, *rest = names
    is_open = False
    for statement in _flat(body):
        if name in _bound(statement):
            if not rest:
                return "present"
            if isinstance(statement, ast.ClassDef):
                found = _in_body(statement.body, rest)
                return "unknown" if found == "missing" and statement.bases else found
            return "unknown"
        is_open |= _may_bind_more(statement)
    return "unknown" if is_open else "missing"


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, and those inside `if`, `try` and `with`."""
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _flat(getattr(statement, field, ()))
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                yield from _flat(handler.body)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = (statement.target,)
    return {node.id for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)}


def _may_bind_more(statement: ast.stmt) -> bool:
    """A star import, or a module that makes its names when they are asked for."""
    if isinstance(statement, ast.ImportFrom):
        return any(alias.name == "*" for alias in statement.names)
    return isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__"


def _findings(library: Library) -> Iterator[Finding]:
    if library.version is None:
        if library.is_required:
            yield Finding(
                "error",
                AREA,
                f"{library.name} isn't installed, and Parity needs it for {library.used_for}.",
                f"install {library.name}, or Parity again with its dependencies.",
            )
        return
    if missing := [each.name for each in library.symbols if each.presence == "missing"]:
        yield Finding(
            "error" if library.is_required else "warning",
            AREA,
            f"{library.name} {library.version} has no {', '.join(missing)}, which"
            f" {'Parity uses' if library.is_required else library.used_for + ' would use'}.",
            f"install a version of {library.name} that Parity's dependencies name.",
        )
