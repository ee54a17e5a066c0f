"""Moves checkouts inside an image to the chosen commits and applies the declared patches.

Runs in the container of a job, after the approval. Invariant: a patch is applied, or proven to be
there already; one that is neither ends the job, because the tests would then run other code than
the plan says.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.ci.workflow.references import COMMIT
from parity.ci.workflow.settings import Dependency
from parity.errors import ConfigError, ParityError

GIT_TIMEOUT_S, INSTALL_TIMEOUT_S = 600.0, 3600.0
APPLIED, PRESENT = "applied", "already present"


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one dependency."""

    name: str
    commit: str
    moved: bool  # whether a reference moved it from the image's own commit
    patches: Mapping[str, str]  # patch -> "applied" or "already present"


def apply_dependencies(
    dependencies: Mapping[str, Dependency], commits: Mapping[str, str], *, root: Path
) -> list[Applied]:
    """Put every dependency at its commit (its own where none is given) and patch it.

    Args:
        dependencies: the declared dependencies.
        commits: full commit ids by name, as planning pinned them; `image_tag` is passed over.
        root: the repository, whose patch files are applied.

    Raises:
        ConfigError: an undeclared name, or something that isn't a full commit.
        ParityError: git or an installation failed, or a patch is neither applicable nor present.
    """
    for name, commit in commits.items():
        if name not in dependencies:
            known = ", ".join(dependencies) or "none"
            raise ConfigError(f"{name!r} isn't a dependency; ci.toml declares {known}.")
        if not COMMIT.fullmatch(commit):
            raise ConfigError(f"{name} is {commit!r}; a commit of 40 digits is needed.")
    return [_apply(each, commits.get(name), root) for name, each in dependencies.items()]


def _apply(dependency: Dependency, commit: str | None, root: Path) -> Applied:
    place = Path(dependency.path)
    if not place.is_dir():
        raise ConfigError(
            f"dependencies.{dependency.name}.path is {dependency.path}, which this image hasn't."
        )
    before = _git(place, "rev-parse", "HEAD")
    if commit is not None and commit != before:
        _git(place, "fetch", "--depth=1", "--", dependency.url, commit)
        _take_back(place, [root / patch for patch in dependency.patches])
        _git(place, "checkout", "--detach", commit)
    patches = {patch: apply_patch(place, root / patch) for patch in dependency.patches}
    for line in dependency.install:
        _install(line, place)
    after = _git(place, "rev-parse", "HEAD")
    return Applied(dependency.name, after, moved=after != before, patches=patches)


def _take_back(place: Path, patches: Sequence[Path]) -> None:
    """Undo the patches that the image brought, which would stand in the way of another commit."""
    for patch in reversed(patches):
        path = str(patch.resolve())
        if _try_git(place, "apply", "--reverse", "--check", "--", path) is None:
            _git(place, "apply", "--reverse", "--", path)


def apply_patch(place: Path, patch: Path) -> str:
    """Apply a patch file to a checkout; returns "applied" or "already present"."""
    if not patch.is_file():
        raise ConfigError(f"there is no patch file {patch}; mend dependencies in ci.toml.")
    path = str(patch.resolve())
    forward = _try_git(place, "apply", "--check", "--", path)
    if forward is None:
        _git(place, "apply", "--", path)
        return APPLIED
    if _try_git(place, "apply", "--reverse", "--check", "--", path) is None:
        return PRESENT
    raise ParityError(
        f"the patch {patch.name} neither applies to {place} nor is it there already"
        f" ({forward}); make it anew for this commit or take it out of ci.toml."
    )


def _git(place: Path, *words: str) -> str:
    done = _run(["git", "-c", f"safe.directory={place}", *words], place, GIT_TIMEOUT_S)
    if done.returncode:
        raise ParityError(f"git {words[0]} failed in {place}: {_last(done.stderr)}")
    return done.stdout.strip()


def _try_git(place: Path, *words: str) -> str | None:
    """What git complained about; None where it succeeded."""
    done = _run(["git", "-c", f"safe.directory={place}", *words], place, GIT_TIMEOUT_S)
    return _last(done.stderr) if done.returncode else None


def _install(line: str, place: Path) -> None:
    done = _run(["bash", "-euo", "pipefail", "-c", line], place, INSTALL_TIMEOUT_S)
    if done.returncode:
        raise ParityError(f"{line!r} failed in {place}: {_last(done.stderr or done.stdout)}")


def _run(command: Sequence[str], place: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ParityError(f"{command[0]} took more than {timeout_s:.0f} s in {place}.") from error


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
