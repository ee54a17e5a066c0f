"""An installed wheel works by itself: recipes are found, from any working directory."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str | Path, cwd: Path) -> str:
    """The standard output of a command that must succeed, away from this working tree.

    The Makefile's constraints are meant for its own installs, and by a relative path.
    """
    left_out = ("PYTHONPATH", "PIP_CONSTRAINT")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, ROOT, cwd=folder)
    (found,) = folder.glob("parity_rl-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=False)
    options = ("--no-deps", "--no-index", "--quiet")
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    run(*pip, "install", *options, wheel, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    # A path file adds a folder and doesn't follow the path files in there, so this environment's
    # own editable install of Parity stays out of sight.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_the_wheel_holds_every_recipe_and_the_type_marker(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    recipes = {str(path.relative_to(source)) for path in source.rglob("*.yaml")}
    assert recipes
    assert recipes <= names
    assert "parity/py.typed" in names
    assert not [name for name in names if name.startswith("tests")]


def test_an_installed_wheel_prints_the_quickstart_from_another_folder(
    installed: Path, tmp_path: Path
):
    place = run(installed / "python", "-c", "import parity; print(parity.__file__)", cwd=tmp_path)
    assert place.startswith(str(installed.parent)), place
    text = run(installed / "parity", "config", "quickstart", cwd=tmp_path)
    assert "kind: train" in text
    assert "# episodes per step" in text
    assert list(tmp_path.iterdir()) == []


def test_an_installed_wheel_takes_a_file_that_builds_on_a_packaged_recipe(
    installed: Path, tmp_path: Path
):
    (tmp_path / "mine.yaml").write_text("defaults: [quickstart]\nsteps: 7\n")
    text = run(installed / "parity", "config", "./mine.yaml", cwd=tmp_path)
    assert "\nsteps: 7\n" in text
