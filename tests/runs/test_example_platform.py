"""The example of a platform of another package installs, passes its own tests, and is decided for.

The package is built and installed as a user does it, into a folder of its own, so that the
environment of the other tests stays as it is.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/xpu-platform"
FACTS = {
    "torch": {"version": "2.9.1+xpu", "xpu": "20250201"},
    "device_counts": {"xpu-smi": 2},
    "environment": {"ZE_AFFINITY_MASK": "1"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    folder = tmp_path_factory.mktemp("site")
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = run("-m", "pip", *words, "--target", str(folder), str(EXAMPLE), site=None)
    assert done.returncode == 0, done.stderr
    return folder


def run(*words: str, site: Path | None, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A Python process that finds the package."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=EXAMPLE.parent,
    )


def doctor(site: Path | None, facts: object, folder: Path, **variables: str):
    path = folder / "facts.json"
    path.write_text(json.dumps(facts))
    words = ("-m", "parity.cli.main", "doctor", "--json", "--facts", str(path))
    return run(*words, site=site, **variables)


def test_its_own_tests_pass(site: Path):
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", str(EXAMPLE / "tests")]
    done = run(*words, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b1[0-9] passed", done.stdout), done.stdout


def test_it_keeps_the_contract(site: Path):
    suite = str(ROOT / "tests/contracts/test_platforms.py")
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-k", "xpu", "--timeout", "200", suite]
    done = run(*words, site=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(".") > 5


def test_the_doctor_decides_for_it(site: Path, tmp_path: Path):
    done = doctor(site, FACTS, tmp_path)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["decision"]["vendor"] == "intel"
    assert report["decision"]["devices"] == [1]
    set_for_rollout = {
        each["name"]: each["value"] for each in report["variables"] if each["role"] == "rollout"
    }
    assert set_for_rollout["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert "ZE_AFFINITY_MASK" in set_for_rollout


def test_without_the_plugin_the_same_facts_are_a_cpu(site: Path, tmp_path: Path):
    done = doctor(site, FACTS, tmp_path, PARITY_PLUGINS="none")
    assert json.loads(done.stdout)["decision"]["platform"] == "cpu"


def test_a_plugin_that_breaks_is_a_loud_line_with_its_traceback(site: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "broken_platform.py").write_text("raise RuntimeError('no driver here')\n")
    info = broken / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[parity.platforms]\nbroken = broken_platform:X\n")
    done = doctor(broken, {"torch": {"version": "2.9.1+cpu"}}, tmp_path)
    assert done.returncode == 1, done.stderr
    (finding,) = [each for each in json.loads(done.stdout)["findings"] if each["area"] == "plugins"]
    assert "broken" in finding["message"]
    assert "no driver here" in finding["detail"]
    assert "Traceback" in finding["detail"]
