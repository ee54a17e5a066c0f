"""Rendered files are current, pass the linters, and never overwrite what a person wrote."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from unit.ci.workflow.sample import make, workflows

from parity.ci.workflow.document import HEADER, dump, load
from parity.ci.workflow.files import render, stale, warnings, write
from parity.errors import ConfigError

BIN = Path(sys.executable).parent
REPOSITORY = Path(__file__).parents[4]


def test_rendering_twice_gives_the_same_text(tmp_path: Path) -> None:
    assert render(make(tmp_path)) == render(make(tmp_path))


def test_a_written_repository_is_current_and_a_change_makes_it_stale(tmp_path: Path) -> None:
    config = make(tmp_path)
    assert len(stale(config)) == 7 and all("is missing" in each for each in stale(config))
    assert len(write(config)) == 7
    assert stale(config) == [] and write(config) == []
    changed = make(tmp_path, ("shards = 2\ncadences", "shards = 4\ncadences"))
    assert stale(changed) == [".github/workflows/ci-npu-runs.yml is stale"]
    assert write(changed) == [".github/workflows/ci-npu-runs.yml written"]


def test_a_change_by_hand_is_found(tmp_path: Path) -> None:
    config = make(tmp_path)
    write(config)
    path = tmp_path / ".github/workflows/ci-rocm-runs.yml"
    path.write_text(path.read_text().replace("pull-requests: read", "pull-requests: write"))
    assert stale(config) == [".github/workflows/ci-rocm-runs.yml is stale"]


def test_a_lane_that_is_gone_takes_its_files_along_and_no_others(tmp_path: Path) -> None:
    write(make(tmp_path))
    own = tmp_path / ".github/workflows/release.yml"
    own.write_text("name: release\n")
    config = make(tmp_path, ("[workflow]\n", '[workflow]\nprefix = "hw"\n'))
    assert "ci-cpu.yml belongs to no lane any more" in "\n".join(stale(config))
    assert ".github/workflows/ci-cpu.yml removed" in write(config)
    names = sorted(path.name for path in own.parent.iterdir())
    assert "hw-cpu.yml" in names and "release.yml" in names and "ci-cpu.yml" not in names


def test_a_file_that_a_person_wrote_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / ".github/workflows/ci-cpu.yml"
    path.parent.mkdir(parents=True)
    path.write_text("name: mine\n")
    with pytest.raises(ConfigError, match="written by hand"):
        write(make(tmp_path))
    assert path.read_text() == "name: mine\n"


def test_a_weak_gate_is_told(tmp_path: Path) -> None:
    found = warnings(make(tmp_path))
    assert "repository isn't set" in found[0]
    assert [each.split()[1] for each in found[1:]] == ["h100-2", "small", "ascend"]
    strong = make(tmp_path, ("[workflow]\n", '[workflow]\nrepository = "acme/trainer"\n'))
    assert len(warnings(strong)) == 3


def test_what_is_dumped_loads_as_it_was() -> None:
    value = {"on": {"push": {}}, "run": "a\nb\n", "text": "x: y # z", "list": ["a", 1, True]}
    text = dump(value, {"b": "a comment"})
    assert text.startswith(HEADER)
    assert load(text) == value


def test_version_comments_stand_beside_every_pin(tmp_path: Path) -> None:
    text = (workflows(tmp_path) / "ci-rocm-runs.yml").read_text()
    pins = [line for line in text.splitlines() if "uses: actions/" in line]
    assert pins and all(line.partition("  # v")[2] for line in pins)


@pytest.fixture(scope="module", params=["parity", "local", "remote"])
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with rendered workflows: this one, and the sample in both forms of its gate."""
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "parity":
        shutil.copytree(REPOSITORY / ".github", root / ".github")
    elif request.param == "local":
        workflows(root)
    else:
        workflows(root, ("[workflow]\n", '[workflow]\nrepository = "acme/trainer"\n'))
    (root / ".git").mkdir()
    return root


def lint(root: Path, *command: str) -> str:
    """What a linter says; fails unless it found nothing and looked at every file."""
    environment = {"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(root)}
    done = subprocess.run(
        command, cwd=root, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_actionlint_finds_nothing(rendered: Path) -> None:
    lint(rendered, str(BIN / "jactionlint"))


def test_zizmor_finds_nothing(rendered: Path) -> None:
    said = lint(rendered, str(BIN / "zizmor"), "--offline", "--no-progress", ".github/workflows")
    files = list((rendered / ".github" / "workflows").glob("*.yml"))
    assert len(files) == 7
    assert all(f"completed .github/workflows/{path.name}" in said for path in files)


def test_the_linters_would_find_something(tmp_path: Path) -> None:
    folder = workflows(tmp_path)
    (tmp_path / ".git").mkdir()
    document = yaml.safe_load((folder / "ci-cpu.yml").read_text())
    steps = document["jobs"]["plan"]["steps"]
    steps[3]["run"] = "echo ${{ github.event.pull_request.title }} ${{ nothing.here }}"
    (folder / "ci-cpu.yml").write_text(yaml.safe_dump(document))
    for command in (["jactionlint"], ["zizmor", "--offline", ".github/workflows"]):
        words = [str(BIN / command[0]), *command[1:]]
        environment = os.environ | {"HOME": str(tmp_path)}
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode != 0, done.stdout
