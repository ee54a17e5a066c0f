import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from parity.errors import ConfigError
from parity.models.paths import find, resolve_path, shipped_names


def test_a_folder_is_a_folder_even_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resolve_path(str(tmp_path / "link")) == tmp_path / "link"


def test_a_name_with_an_owner_is_a_hub_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_path("owner/name") == "owner/name"
    assert resolve_path("name") == "name"


@pytest.mark.parametrize(
    "path", ["/no/where", "./name", "../name", "~/no-such-model", "a/b/c", "here/name"]
)
def test_a_path_that_looks_local_never_asks_a_hub(path: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.path is .* no such folder"):
        resolve_path(path)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(ConfigError, match="is a file; give the model's folder"):
        resolve_path(str(tmp_path / "model.safetensors"))


def test_an_unknown_shipped_model_lists_what_ships(tmp_path: Path, monkeypatch) -> None:
    for name in ("warm-speller", "other"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
    (tmp_path / "models" / "no-config").mkdir()
    monkeypatch.setattr("parity.models.paths._shipped_dir", lambda: tmp_path / "models")
    assert shipped_names() == ["other", "warm-speller"]
    assert resolve_path("parity://other") == tmp_path / "models" / "other"
    with pytest.raises(ConfigError, match=r"other, warm-speller.*mean 'warm-speller'"):
        resolve_path("parity://warm-speler")
    with pytest.raises(ConfigError, match="doesn't ship"):
        resolve_path("parity://../models/other")


def test_every_shipped_model_can_be_found() -> None:
    for name in shipped_names():
        assert resolve_path(f"parity://{name}") != name


def test_no_path_at_all_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"model\.tokenizer is not set"):
        find(None, key="model.tokenizer")


def test_an_unreachable_hub_means_what_is_on_the_disk(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = find("owner/name", key="model.path")
    assert (place.path, place.is_folder, place.is_offline) == ("owner/name", False, True)
    assert find(str(tmp_path), key="model.path").is_folder


def test_a_word_that_is_no_hub_name_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not a hub name"):
        find("no such/model name", key="model.path")


def test_paths_and_rendering_need_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, parity.models.paths, parity.models.rendering, parity.tasks.stream\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'reasoning_gym', 'huggingface_hub'}\n"
        "raise SystemExit(', '.join(sorted(heavy & sys.modules.keys())))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n", done.stderr  # SystemExit('') prints an empty line
