"""Toolkits are found where a variable or the vendor puts them; versions compare as meant."""

import pytest

from parity.platforms.machine.toolkit import order, read_version

RISING = [
    "8.2.0", "8.3.RC1.alpha003", "8.3.RC1", "8.3.rc2", "8.3.0", "8.3.1", "8.10", "25.3.rc1",
]  # fmt: skip


def test_release_candidates_and_test_versions_come_before_releases():
    assert sorted([*RISING[4:], *RISING[:4]], key=order) == RISING
    assert order("8.3.t1") < order("8.3.rc1")
    assert order("25.3") == order("25.3.0")
    assert order("V25.3.RC1") == order("25.3.rc1")
    assert order("25.3.0+build.7") == order("25.3")


@pytest.mark.parametrize("text", [None, "", "odd", "rc1", "25x", "version 8"])
def test_what_is_no_version_is_unknown(text):
    assert order(text) is None


def test_the_toolkit_that_a_variable_names_is_looked_at_first(tmp_path, monkeypatch):
    for name, version in (("named", "8.3.RC1"), ("known", "8.2.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "info").write_text(f"package_name=x\nversion={version}\nversion_dir=7\n")
    known = [tmp_path / "none", tmp_path / "known"]
    assert read_version("cann", ["SOME_HOME"], known, "info") == {"cann": "8.2.0"}
    monkeypatch.setenv("SOME_HOME", str(tmp_path / "named"))
    assert read_version("cann", ["SOME_HOME"], known, "info") == {"cann": "8.3.RC1"}
    assert read_version("cann", [], [tmp_path], "info") == {}
