"""What torch was built for is read without importing it, and is the same as torch's own word."""

import json
import subprocess
import sys

import pytest

from parity.platforms.facts import TorchBuild
from parity.platforms.machine.torch_build import build_of, read_torch_build

READ = """
import json, sys
from parity.platforms.facts import Facts
from parity.platforms.machine.torch_build import read_torch_build
print(json.dumps([Facts(torch=read_torch_build()).to_json()["torch"], "torch" in sys.modules]))
"""


def read(*path: str) -> list:
    code = f"import sys\nsys.path[:0] = {list(path)!r}\n{READ}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_the_installed_torch_is_read_without_being_imported():
    import torch

    found, is_imported = read()
    assert not is_imported
    assert found["version"] == torch.__version__
    assert (found["cuda"], found["hip"]) == (torch.version.cuda, torch.version.hip)
    assert read_torch_build() == TorchBuild(**found)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("__version__ = '2.9'\nhip = '7.2'\ncuda = None\n", ("2.9", None, "7.2")),
        ("__version__ = '2.9'\n", ("2.9", None, None)),
        ("__version__ = '2.9'\ncuda = ''\n", ("2.9", None, None)),
        ("__version__ = '2.9'\ncuda = 13.0\n", ("2.9", None, None)),
    ],
)
def test_a_build_that_lacks_a_name_is_none_of_that(tmp_path, version, expected):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch/version.py").write_text(version)
    found, is_imported = read(str(tmp_path))
    assert (found["version"], found["cuda"], found["hip"]) == expected
    assert not is_imported


@pytest.mark.parametrize("version", ["", "1 +", "__version__ = None\n"])
def test_a_torch_that_cannot_be_read_is_no_torch(tmp_path, version):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("")
    (tmp_path / "torch/version.py").write_text(version)
    assert read(str(tmp_path)) == [None, False]


def test_an_empty_folder_of_that_name_is_no_torch(tmp_path):
    assert build_of({}) is None
    (tmp_path / "torch").mkdir()  # a namespace package shadows nothing that is installed
    found, _ = read(str(tmp_path))
    assert found is not None
