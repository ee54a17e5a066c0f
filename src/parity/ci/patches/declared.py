"""The section `[patches.NAME]` of `ci.toml`.

```toml
[patches.sampler-rename]
module = "sampler.kernels"     # patched right after it is imported
distribution = "sampler"       # whose version counts
versions = ">=0.4,<0.6"        # PEP 440; outside it the patch no longer applies and fails
why = "topk_softmax was called moe_softmax before 0.6"
backends = ["rocm"]            # all where left out
[patches.sampler-rename.aliases]
topk_softmax = "moe_softmax"   # new name = the name that this version has
```

Instead of `aliases`, or beside them, `file = "ci/patches/sampler.py"` names a file whose
`apply(module)` changes the module. Invariant: a declaration says what, for which versions and why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from parity.ci.config import Config
from parity.ci.toml import Table, named
from parity.errors import ConfigError
from parity.registry import known


@dataclass(frozen=True, slots=True)
class Patch:
    """One declared patch."""

    name: str
    module: str
    distribution: str
    versions: str
    why: str
    aliases: Mapping[str, str]  # new name -> name in this version
    file: str | None  # path of a file with `apply(module)`, relative to the root
    backends: tuple[str, ...]  # none: every one


def read_patches(config: Config) -> dict[str, Patch]:
    """The declared patches by name; raises ConfigError with file and line."""
    section = config.section("patches")
    tables = {name: section.table(name) for name in section.names()}
    return {name: _read(name, table, config) for name, table in named(tables)}


def active(config: Config, backend: str | None = None) -> dict[str, str]:
    """What a plan lists: each patch of a backend (None: of any), with its range and its reason."""
    return {
        name: f"{patch.module} of {patch.distribution}{patch.versions}: {patch.why}"
        for name, patch in read_patches(config).items()
        if backend is None or not patch.backends or backend in patch.backends
    }


def chosen(config: Config, names: Sequence[str], backend: str) -> list[Patch]:
    """The patches that `--patch NAME ...` asks for; raises ConfigError for one that can't be."""
    patches = read_patches(config)
    found: list[Patch] = []
    for name in names:
        if name not in patches:
            raise ConfigError(f"--patch {name}: {known(name, patches)}")
        patch = patches[name]
        if patch.backends and backend not in patch.backends:
            raise ConfigError(
                f"--patch {name} is for {', '.join(patch.backends)}, and this is {backend}."
            )
        found.append(patch)
    return found


def _read(name: str, table: Table, config: Config) -> Patch:
    module = table.text("module")
    if not all(part.isidentifier() for part in module.split(".")):
        raise table.error("module", f"is {module!r}; a dotted module name is needed.")
    versions = table.text("versions")
    try:
        is_open = not SpecifierSet(versions)
    except InvalidSpecifier as error:
        raise table.error(
            "versions", f"is {versions!r}; write a range such as >=0.4,<0.6."
        ) from error
    if is_open or not any(sign in versions for sign in ("<", "==", "~=")):
        raise table.error(
            "versions", f"is {versions!r}, which never ends; a patch says up to which version."
        )
    aliases = table.mapping("aliases")
    for new, old in aliases.items():
        if not (new.isidentifier() and old.isidentifier()) or new == old:
            raise table.error("aliases", f"has {new} = {old!r}; two different names are needed.")
    file = table.optional_text("file")
    if file is not None and not _is_inside(config.root, file):
        raise table.error("file", f"is {file!r}, which isn't a file of the repository.")
    if not aliases and file is None:
        raise table.error(None, "changes nothing; give it aliases or a file with apply(module).")
    found = Patch(
        name=name,
        module=module,
        distribution=table.text("distribution", module.partition(".")[0]),
        versions=versions,
        why=table.text("why"),
        aliases=aliases,
        file=file,
        backends=table.words("backends", list(config.backends), ()),
    )
    table.done()
    return found


def _is_inside(root: Path, file: str) -> bool:
    place = (root / file).resolve()
    return place.is_relative_to(root.resolve()) and place.is_file()
