"""Names and endpoints are present, missing or unknown, and no library is imported to find out."""

import sys
from pathlib import Path

import pytest
from third_party import installed

from parity.doctor import libraries
from parity.doctor.imports import try_torch
from parity.doctor.libraries import Need

RAISES = "raise RuntimeError('it was imported')\n"
TOP = (
    RAISES
    + """
import os.path as place
from other import thing as renamed, plain

CONSTANT = 1
typed: int = 2
first, second = 1, 2
try:
    from fast import quick
except ImportError:
    quick = None
if CONSTANT:
    def hidden(): ...
    async def waits(): ...


class Engine:
    limit = 3

    def generate(self): ...


class Derived(Engine):
    def own(self): ...
"""
)
MODULES = {
    "somelib/__init__.py": TOP,
    "somelib/part.py": RAISES + "def f(): ...\n",
    "somelib/star.py": "from somelib.part import *\n",
    "somelib/lazy.py": "def __getattr__(name): ...\n",
    "somelib/broken.py": "def (\n",
    "somelib/server.py": RAISES + "@app.post('/pause')\ndef pause(): ...\n",
}


@pytest.fixture(autouse=True)
def somelib(tmp_path: Path):
    with installed(tmp_path, MODULES, {}, name="somelib"):
        (tmp_path / "somelib/compiled.abi3.so").write_bytes(b"\x7fELF")
        yield
        assert "somelib" not in sys.modules


@pytest.mark.parametrize(
    ("name", "presence"),
    [
        ("somelib:CONSTANT", "present"),
        ("somelib:typed", "present"),
        ("somelib:second", "present"),
        ("somelib:place", "present"),
        ("somelib:renamed", "present"),
        ("somelib:plain", "present"),
        ("somelib:thing", "missing"),
        ("somelib:quick", "present"),
        ("somelib:hidden", "present"),
        ("somelib:waits", "present"),
        ("somelib:Engine.generate", "present"),
        ("somelib:Engine.limit", "present"),
        ("somelib:Engine.pause", "missing"),
        ("somelib:Derived.own", "present"),
        ("somelib:Derived.generate", "unknown"),
        ("somelib:plain.member", "unknown"),
        ("somelib:nothing", "missing"),
        ("somelib.part:f", "present"),
        ("somelib.part:g", "missing"),
        ("somelib.star:f", "unknown"),
        ("somelib.lazy:f", "unknown"),
        ("somelib.broken:f", "unknown"),
        ("somelib.compiled:f", "unknown"),
        ("somelib.absent:f", "missing"),
        ("no_such_library:f", "missing"),
    ],
)
def test_a_name_is_found_in_the_source(name: str, presence: str):
    assert libraries.presence(name) == presence


def test_an_endpoint_is_found_in_the_servers_source():
    assert libraries.endpoint_presence("somelib.server", "/pause") == "present"
    assert libraries.endpoint_presence("somelib.server", "/resume") == "missing"
    assert libraries.endpoint_presence("somelib.absent", "/pause") == "unknown"


def test_a_missing_name_of_a_required_library_is_an_error():
    need = Need("somelib", is_required=True, used_for="x", names=(("somelib:gone", "y"),))
    (library,), (finding,) = libraries.examine([need])
    assert library.version == "1.0"
    assert finding.level == "error"
    assert "somelib 1.0 has no somelib:gone" in finding.message


def test_a_missing_endpoint_of_an_optional_library_is_a_warning():
    need = Need(
        "somelib", is_required=False, used_for="x", endpoints=("/resume",), server="somelib.server"
    )
    _, (finding,) = libraries.examine([need])
    assert finding.level == "warning"
    assert "/resume" in finding.message


def test_only_a_required_library_has_to_be_installed():
    required = Need("no-such-library", is_required=True, used_for="x")
    optional = Need("no-such-library", is_required=False, used_for="x")
    assert [f.level for f in libraries.examine([required])[1]] == ["error"]
    assert libraries.examine([optional])[1] == []


def test_everything_that_parity_needs_is_present_in_the_libraries_of_the_tests():
    for library in libraries.examine()[0]:
        if library.is_required:
            assert library.version is not None
            assert {symbol.presence for symbol in library.symbols} <= {"present"}, library


def test_a_library_that_fails_at_import_is_told_without_an_import_here(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (finding,) = try_torch(module="somelib")
    assert finding.level == "error"
    assert "importing somelib fails" in finding.message
    assert "it was imported" in finding.message


def test_a_library_that_crashes_or_hangs_at_import_does_not_take_us_along(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "crashes.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "works.py").write_text("")
    assert "status -11" in try_torch(module="crashes")[0].message
    assert "within 1 s" in try_torch(module="hangs", deadline_s=1.0)[0].message
    assert try_torch(module="works") == []
