"""Changes a module right after its import, in this process and in every child of it.

`install` is called by `wrapper.py`'s start-up file in each Python process of a test. Invariant:
an import of a patched module either gives the patched module or raises; a patch that doesn't fit
is never passed over.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

from packaging.specifiers import SpecifierSet

from parity.ci.patches.declared import Patch

APPLIED = "applied.jsonl"


class PatchError(ImportError):
    """A patch doesn't fit the module that was imported."""


def install(patches: Sequence[Patch], *, root: Path, folder: Path) -> None:
    """Watch imports from now on.

    Args:
        patches: what to apply; each version was checked already.
        root: the repository, which holds the patches' files.
        folder: where each application is noted, for the report.
    """
    by_module: dict[str, list[Patch]] = {}
    for patch in patches:
        by_module.setdefault(patch.module, []).append(patch)
    for name in by_module:
        if name in sys.modules:
            raise PatchError(f"{name} was imported before its patches; they would not apply.")

    def after_import(module: types.ModuleType) -> None:
        for patch in by_module[module.__name__]:
            apply(patch, module, root)
            _note(folder, patch)

    sys.meta_path.insert(0, _Finder(frozenset(by_module), after_import))


def check_version(patch: Patch) -> str:
    """The installed version; raises PatchError where the patch isn't for it."""
    try:
        installed = version(patch.distribution)
    except PackageNotFoundError as error:
        raise PatchError(
            f"patch {patch.name}: {patch.distribution} isn't installed; drop --patch {patch.name}"
            " here, or mend its distribution in ci.toml."
        ) from error
    if not SpecifierSet(patch.versions).contains(installed, prereleases=True):
        raise PatchError(
            f"patch {patch.name} is for {patch.distribution} {patch.versions}, and {installed} is"
            " installed: it no longer applies; take it out of ci.toml or mend its versions."
        )
    return installed


def apply(patch: Patch, module: types.ModuleType, root: Path) -> None:
    """Change an imported module; raises PatchError where it isn't as the patch expects."""
    for new, old in patch.aliases.items():
        if hasattr(module, new):
            raise PatchError(
                f"patch {patch.name}: {patch.module} has {new} already; the patch no longer"
                " applies; take it out of ci.toml."
            )
        if not hasattr(module, old):
            raise PatchError(f"patch {patch.name}: {patch.module} has no {old} to call {new}.")
        setattr(module, new, getattr(module, old))
    if patch.file is not None:
        _run_file(patch, module, root / patch.file)


def _run_file(patch: Patch, module: types.ModuleType, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"_parity_patch_{path.stem}", path)
    assert spec is not None and spec.loader is not None, f"{path} has no loader"
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    function = cast("Callable[[types.ModuleType], object] | None", vars(code).get("apply"))
    if not callable(function):
        raise PatchError(f"patch {patch.name}: {path} has no function apply(module).")
    try:
        is_changed = function(module)
    except Exception as error:
        raise PatchError(f"patch {patch.name} failed on {patch.module}: {error!r}.") from error
    if is_changed is not True:
        raise PatchError(
            f"patch {patch.name}: apply of {path.name} returned {is_changed!r} for {patch.module};"
            " it returns True once it has changed the module, so the patch no longer applies."
        )


def _note(folder: Path, patch: Patch) -> None:
    """One line in one write, so that lines of several processes don't mix."""
    line = json.dumps({"patch": patch.name, "process": os.getpid()}) + "\n"
    file = os.open(folder / APPLIED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the watched modules as usual and lets their loader call us afterwards."""

    def __init__(
        self, watched: frozenset[str], after_import: Callable[[types.ModuleType], None]
    ) -> None:
        self._watched = watched
        self._after_import = after_import

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the finders after this one give, with our loader around theirs."""
        if fullname not in self._watched:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._after_import)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Another loader, after whose work the module is patched."""

    def __init__(
        self,
        inner: importlib.abc.Loader,
        after_import: Callable[[types.ModuleType], None],
    ) -> None:
        self._inner = inner
        self._after_import = after_import

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """As the inner loader does."""
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module, then patch it; its own loader stands in it as if alone."""
        assert module.__spec__ is not None, "an imported module has a spec"
        module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._after_import(module)
