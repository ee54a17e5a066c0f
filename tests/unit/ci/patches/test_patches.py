"""A declared patch fits the version it is for, in every process of a test, or stops the test."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parity.ci.loading import load_config
from parity.ci.patches import active, chosen, read_patches, wrapped
from parity.ci.patches.wrapper import UNFIT
from parity.errors import ConfigError

CI = """
schema = 1
[project]
roots = ["tests"]
[backends.rocm]
description = "AMD GPUs"
[backends.cpu]
description = "no device"
accelerator = false
[suites.fast]
description = "fast tests"
backend = "cpu"
runner = ["ubuntu-24.04"]
[cadences.regular]
[scopes.all]
labels = []
[events.push]
cadence = "regular"
scope = "all"
"""
RENAME = """
[patches.rename]
module = "oldlib.kernels"
distribution = "oldlib"
versions = ">=0.4,<0.6"
why = "fast_softmax was called moe_softmax before 0.6"
[patches.rename.aliases]
fast_softmax = "moe_softmax"
"""
FILE = """
[patches.argument]
module = "oldlib.kernels"
distribution = "oldlib"
versions = "<0.6"
why = "the keyword `scale` came with 0.6"
file = "ci/argument.py"
"""


class Repository:
    """A repository with an old library, installed as pip would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "site"

    def library(self, version: str, text: str) -> None:
        package = self.site / "oldlib"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "kernels.py").write_text(text)
        info = self.site / f"oldlib-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: oldlib\nVersion: {version}\n")

    def declare(self, text: str) -> None:
        (self.root / "ci.toml").write_text(CI + text)

    def run(self, test: str, *names: str) -> subprocess.CompletedProcess[str]:
        path = self.root / "test_it.py"
        path.write_text(test)
        config = load_config(self.root)
        command = wrapped(
            [sys.executable, str(path)],
            chosen(config, names, "cpu"),
            root=self.root,
            backend="cpu",
        )
        environment = {"PYTHONPATH": str(self.site), "PATH": "/usr/bin:/bin"}
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=60, check=False
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    found = Repository(tmp_path)
    found.declare(RENAME)
    found.library("0.5.1", "def moe_softmax(x):\n    return x * 2\n")
    return found


def test_a_renamed_function_has_its_new_name_during_the_test(repository: Repository) -> None:
    done = repository.run(
        "from oldlib.kernels import fast_softmax\nprint(fast_softmax(4))", "rename"
    )
    assert (done.returncode, done.stdout) == (0, "8\n")
    assert "patch rename: oldlib 0.5.1: fast_softmax was called" in done.stderr
    assert "patch rename: applied in 1 process(es)" in done.stderr


def test_without_the_patch_the_same_test_fails(repository: Repository) -> None:
    assert repository.run("from oldlib.kernels import fast_softmax").returncode == 1


def test_child_processes_of_the_test_are_patched_too(repository: Repository) -> None:
    test = (
        "import subprocess, sys\n"
        "code = 'from oldlib import kernels; print(kernels.fast_softmax(3))'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True).stdout)\n"
        "from oldlib import kernels; print(kernels.fast_softmax(1))\n"
    )
    done = repository.run(test, "rename")
    assert done.stdout == "b'6\\n'\n2\n", done.stderr
    assert "applied in 2 process(es)" in done.stderr


def test_the_start_up_file_of_the_environment_still_runs(repository: Repository) -> None:
    (repository.site / "sitecustomize.py").write_text("import sys\nsys.from_the_site = 7\n")
    done = repository.run("import sys\nprint(sys.from_the_site)", "rename")
    assert done.stdout == "7\n", done.stderr


def test_another_version_stops_the_test_before_it_begins(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.declare(RENAME)
    repository.library("0.6.0", "def fast_softmax(x):\n    return x\n")
    done = repository.run("print('ran')", "rename")
    assert (done.returncode, done.stdout) == (UNFIT, "")
    assert "0.6.0 is installed: it no longer applies" in done.stderr


def test_a_missing_distribution_stops_the_test(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.declare(RENAME)
    done = repository.run("print('ran')", "rename")
    assert (done.returncode, done.stdout) == (UNFIT, "")
    assert "oldlib isn't installed" in done.stderr


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("def fast_softmax(x): return x\ndef moe_softmax(x): return x\n", "no longer applies"),
        ("def other(x): return x\n", "has no moe_softmax to call fast_softmax"),
    ],
)
def test_a_library_that_is_not_as_declared_fails_at_the_import(
    tmp_path: Path, library: str, message: str
) -> None:
    repository = Repository(tmp_path)
    repository.declare(RENAME)
    repository.library("0.5.0", library)
    done = repository.run("import oldlib.kernels\nprint('ran')", "rename")
    assert done.returncode == 1 and "ran" not in done.stdout
    assert message in done.stderr


def test_a_file_changes_what_a_name_cannot(repository: Repository) -> None:
    repository.declare(FILE)
    (repository.root / "ci").mkdir()
    (repository.root / "ci" / "argument.py").write_text(
        "def apply(module):\n"
        "    inner = module.moe_softmax\n"
        "    module.moe_softmax = lambda x, scale=1: inner(x) * scale\n"
        "    return True\n"
    )
    done = repository.run(
        "from oldlib.kernels import *\nprint(moe_softmax(1, scale=5))", "argument"
    )
    assert done.stdout == "10\n", done.stderr


@pytest.mark.parametrize("body", ["return False", "raise ValueError('gone')"])
def test_a_file_that_changes_nothing_fails_the_import(repository: Repository, body: str) -> None:
    repository.declare(FILE)
    (repository.root / "ci").mkdir()
    (repository.root / "ci" / "argument.py").write_text(f"def apply(module):\n    {body}\n")
    done = repository.run("import oldlib.kernels\nprint('ran')", "argument")
    assert done.returncode == 1 and "ran" not in done.stdout
    assert "patch argument" in done.stderr


def test_a_patch_whose_module_nobody_imports_is_told(repository: Repository) -> None:
    done = repository.run("print('ran')", "rename")
    assert done.returncode == 0
    assert "patch rename: oldlib.kernels wasn't imported" in done.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("sys.exit(5)", 5),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_the_wrapper_ends_as_the_test_ended(repository: Repository, ending: str, code: int) -> None:
    done = repository.run(f"import os, signal, sys\n{ending}", "rename")
    assert done.returncode == code


def test_a_start_up_file_that_cannot_work_stops_the_process(repository: Repository) -> None:
    test = (
        "import os, subprocess, sys\n"
        "folder = os.environ['PYTHONPATH'].split(':')[0]\n"
        "os.remove(os.path.join(folder, 'patches.json'))\n"
        "print(subprocess.run([sys.executable, '-c', 'print(1)']).returncode)\n"
    )
    done = repository.run(test, "rename")
    assert done.stdout == f"{UNFIT}\n", done.stderr


def test_a_command_without_patches_stays_as_it_is(tmp_path: Path) -> None:
    assert wrapped(["python", "x.py"], [], root=tmp_path, backend="cpu") == ("python", "x.py")


def test_a_plan_lists_the_patches_of_its_backend(repository: Repository) -> None:
    repository.declare(
        RENAME.replace("[patches.rename.a", 'backends = ["rocm"]\n[patches.rename.a')
    )
    config = load_config(repository.root)
    assert active(config, "cpu") == {}
    expected = "oldlib.kernels of oldlib>=0.4,<0.6: fast_softmax was called moe_softmax before 0.6"
    assert active(config) == active(config, "rocm") == {"rename": expected}
    assert json.dumps(active(config))
    with pytest.raises(ConfigError, match="is for rocm, and this is cpu"):
        chosen(config, ["rename"], "cpu")
    with pytest.raises(ConfigError, match=r"--patch renam: .*rename"):
        chosen(config, ["renam"], "rocm")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('versions = ">=0.4,<0.6"', 'versions = ">=0.4"', "which never ends"),
        ('versions = ">=0.4,<0.6"', 'versions = "old"', "write a range"),
        ('why = "', 'wy = "', "is missing"),
        ('module = "oldlib.kernels"', 'module = "old-lib"', "dotted module name"),
        ('fast_softmax = "moe_softmax"', 'f = "f"', "two different names"),
        ('fast_softmax = "moe_softmax"', "", "changes nothing"),
        ("[patches.rename.a", 'file = "../x.py"\n[patches.rename.a', "isn't a file of the rep"),
        ("[patches.rename.a", 'backends = ["tpu"]\n[patches.rename.a', "tpu"),
    ],
)
def test_a_declaration_that_says_too_little_is_refused_with_its_line(
    repository: Repository, before: str, after: str, message: str
) -> None:
    assert before in RENAME
    repository.declare(RENAME.replace(before, after))
    with pytest.raises(ConfigError, match=message) as caught:
        read_patches(load_config(repository.root))
    assert str(caught.value).startswith("ci.toml:")
