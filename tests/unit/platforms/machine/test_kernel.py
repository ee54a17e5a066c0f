"""Files of kernel drivers: what is there, what isn't, and what can't be read are three things."""

import os
from pathlib import Path

import pytest

from parity.platforms.machine import kernel


def is_device(text: str) -> bool:
    return "device" in text


def plant(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "properties").write_text(text)
    return folder


def test_only_files_that_describe_a_device_count(tmp_path):
    folder = plant(tmp_path / "nodes", a="a device", b="a processor", c="")
    assert kernel.count_devices("x", folder, "*/properties", is_device) == {"x": 1}


def test_no_folder_is_no_answer_and_an_empty_one_is_zero(tmp_path):
    assert kernel.count_devices("x", tmp_path / "none", "*/properties", is_device) == {}
    assert kernel.count_devices("x", tmp_path, "*/properties", is_device) == {"x": 0}


def test_a_file_that_is_no_text_makes_the_count_unknown(tmp_path):
    folder = plant(tmp_path / "nodes", a="a device")
    (folder / "a/properties").write_bytes(b"\xff\xfe device")
    assert kernel.count_devices("x", folder, "*/properties", is_device) == {"x": None}
    (tmp_path / "version").write_bytes(b"\xff")
    assert kernel.read_version("v", tmp_path / "version", "[0-9]+") == {"v": None}


def test_a_device_that_this_process_may_not_read_does_not_count(tmp_path, monkeypatch):
    folder = plant(tmp_path / "nodes", a="a device", b="a device")
    real = Path.read_text

    def refuse(path: Path, **how: str) -> str:
        if path.parent.name == "b":
            raise PermissionError(1, "Operation not permitted", str(path))
        return real(path, **how)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert kernel.count_devices("x", folder, "*/properties", is_device) == {"x": 1}


def test_a_version_is_the_first_match_and_no_file_is_no_answer(tmp_path):
    (tmp_path / "version").write_text("driver\nversion = 7.2.1 (stable)\n")
    read = kernel.read_version
    assert read("v", tmp_path / "version", r"version = (\S+)") == {"v": "7.2.1"}
    assert read("v", tmp_path / "version", r"[0-9.]+") == {"v": "7.2.1"}
    assert read("v", tmp_path / "version", r"nothing") == {"v": None}
    assert read("v", tmp_path / "none", r"[0-9]") == {}
    assert read("v", tmp_path / "version" / "deeper", r"[0-9]") == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_version_that_may_not_be_read_is_unknown(tmp_path):
    (tmp_path / "version").write_text("1")
    (tmp_path / "version").chmod(0)
    assert kernel.read_version("v", tmp_path / "version", r"[0-9]") == {"v": None}
