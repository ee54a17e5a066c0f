"""Dependencies in an image move to the pinned commit, and patches are applied or proven present."""

import subprocess
from pathlib import Path

import pytest

from parity.ci.workflow.settings import Dependency
from parity.ci.workflow.sources import APPLIED, PRESENT, apply_dependencies
from parity.errors import ConfigError, ParityError


class Place:
    """A remote with two commits, a checkout of the first as an image has it, and a patch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.remote = root / "remote"
        self.remote.mkdir()
        self.git(self.remote, "init", "-q", "-b", "main")
        self.first = self.commit("one\ntwo\nthree\n")
        self.second = self.commit("one\ntwo\nthree\nfour\n")
        self.checkout = root / "image"
        self.git(root, "clone", "-q", str(self.remote), str(self.checkout))
        self.git(self.checkout, "checkout", "-q", "--detach", self.first)
        (root / "fix.patch").write_text(
            "--- a/code.txt\n+++ b/code.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
        )

    def git(self, place: Path, *words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, text: str) -> str:
        (self.remote / "code.txt").write_text(text)
        self.git(self.remote, "add", ".")
        self.git(self.remote, "commit", "-q", "-m", "change")
        return self.git(self.remote, "rev-parse", "HEAD")

    def dependency(self, *install: str, patches: tuple[str, ...] = ("fix.patch",)) -> Dependency:
        return Dependency(
            "engine", str(self.remote), str(self.checkout), "ci-engine", None, patches, install
        )

    def apply(self, commit: str | None = None, *install: str) -> tuple[str, bool, dict[str, str]]:
        commits = {} if commit is None else {"engine": commit}
        found = apply_dependencies({"engine": self.dependency(*install)}, commits, root=self.root)
        return found[0].commit, found[0].moved, dict(found[0].patches)

    @property
    def text(self) -> str:
        return (self.checkout / "code.txt").read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_patch_is_applied_once_and_then_found_present(place: Place) -> None:
    assert place.apply() == (place.first, False, {"fix.patch": APPLIED})
    assert place.text == "one\nTWO\nthree\n"
    assert place.apply() == (place.first, False, {"fix.patch": PRESENT})
    assert place.text == "one\nTWO\nthree\n"


def test_a_patched_image_moves_to_the_pinned_commit_and_is_patched_again(place: Place) -> None:
    place.apply()
    assert place.apply(place.second) == (place.second, True, {"fix.patch": APPLIED})
    assert place.text == "one\nTWO\nthree\nfour\n"


def test_a_patch_that_is_neither_applicable_nor_present_is_an_error(place: Place) -> None:
    third = place.commit("one\nzwei\nthree\n")
    with pytest.raises(ParityError, match=r"fix\.patch neither applies to .* nor is it there"):
        place.apply(third)


def test_other_changes_of_the_image_are_not_thrown_away(place: Place) -> None:
    (place.checkout / "code.txt").write_text("mine\n")
    with pytest.raises(ParityError, match="git checkout failed"):
        place.apply(place.second)
    assert place.text == "mine\n"


def test_installation_lines_run_in_the_checkout_and_may_fail(place: Place) -> None:
    place.apply(None, "cat code.txt > seen.txt")
    assert (place.checkout / "seen.txt").read_text() == "one\nTWO\nthree\n"
    with pytest.raises(ParityError, match=r"'false \| true' failed"):
        place.apply(None, "false | true")


def test_names_and_commits_are_checked_before_anything_is_touched(place: Place) -> None:
    with pytest.raises(ConfigError, match="'motor' isn't a dependency"):
        apply_dependencies({"engine": place.dependency()}, {"motor": "a" * 40}, root=place.root)
    with pytest.raises(ConfigError, match="a commit of 40 digits"):
        place.apply("main")
    with pytest.raises(ParityError, match="git fetch failed"):
        place.apply("a" * 40)
    assert place.text == "one\ntwo\nthree\n"


def test_a_missing_checkout_or_patch_file_is_told(place: Place) -> None:
    with pytest.raises(ConfigError, match=r"there is no patch file"):
        apply_dependencies(
            {"engine": place.dependency(patches=("none.patch",))}, {}, root=place.root
        )
    place.checkout.rename(place.root / "elsewhere")
    with pytest.raises(ConfigError, match="which this image hasn't"):
        place.apply()
