"""The same program serves this repository and another one, which shares nothing with it.

The second repository is made here, with tests and lanes of its own. What its rendered jobs would
do is done for real: their scripts run in bash, one after the other, as the CI service runs them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.ci.workflow.service import evaluate

from parity.ci.loading import load_config
from parity.ci.registry.discovery import collect
from parity.ci.workflow.files import stale

HERE = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
CI = """
schema = 1
[project]
roots = ["checks"]
patterns = ["check_*.py"]
default_branch = "main"
[backends.cpu]
description = "hosted machines"
accelerator = false
[backends.rocm]
description = "AMD GPUs"
[suites.quick]
description = "quick checks"
backend = "cpu"
runner = ["ubuntu-24.04"]
shards = 2
job_timeout_minutes = 20
[suites.gpu]
description = "one GPU"
backend = "rocm"
devices = 1
runner = ["self-hosted", "mi300x"]
image = "acme/box:1"
needs = ["quick"]
[labels]
gpu = "checks on a GPU"
[workflow_labels.all-of-it]
meaning = "everything"
scope = "all"
[scopes.none]
[scopes.all]
rank = 1
labels = ["*"]
[cadences.regular]
[cadences.nightly]
cron = ["30 1 * * *"]
scope = "all"
[events.pull_request]
cadence = "regular"
scope = "none"
prune = true
[events.schedule]
scope = "none"
[[paths]]
globs = ["*.md"]
suites = []
why = "text"
[workflow]
install = ["python -m pip install parity-rl"]
prefix = "lab"
[workflow.lanes.rocm]
vendor = "amd"
[dependencies.engine]
url = "ENGINE"
path = "CHECKOUT"
"""
CHECK = """
from parity.ci.register import register_cpu_ci, register_rocm_ci
{calls}
if __name__ == "__main__":
    print("checked {name}")
    raise SystemExit({code})
"""


class Lab:
    """The second repository, and a service that runs the steps of its jobs."""

    def __init__(self, root: Path) -> None:
        self._planned: dict[str, dict[str, str]] = {}
        self.root = root / "lab"
        self.temporary = root / "temporary"
        self.temporary.mkdir()
        (self.root / "checks").mkdir(parents=True)
        self.engine = root / "engine"
        self.engine.mkdir()
        self.git(self.engine, "init", "-q", "-b", "main")
        self.git(self.engine, "commit", "-q", "--allow-empty", "-m", "engine")
        self.engine_commit = self.git(self.engine, "rev-parse", "HEAD")
        text = CI.replace("ENGINE", str(self.engine)).replace("CHECKOUT", str(root / "image"))
        (self.root / "ci.toml").write_text(text)
        for name, calls, code in (
            ("one", 'register_cpu_ci(est_time=3, suite="quick")', 0),
            ("two", 'register_cpu_ci(est_time=1, suite="quick")', 0),
            ("gpu", 'register_rocm_ci(est_time=30, suite="gpu", labels=["gpu"])', 0),
        ):
            check = CHECK.format(calls=calls, name=name, code=code)
            (self.root / "checks" / f"check_{name}.py").write_text(check)
        self.git(self.root, "init", "-q", "-b", "main")
        self.commit("first")

    def git(self, place: Path, *words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str) -> None:
        self.git(self.root, "add", "-A")
        self.git(self.root, "commit", "-q", "-m", message)

    def parity(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "parity"), "ci", *words],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def workflow(self, name: str) -> dict[str, Any]:
        return yaml.safe_load((self.root / ".github" / "workflows" / name).read_text())

    def step(
        self, step: Mapping[str, Any], context: dict[str, Any]
    ) -> tuple[int, str, dict[str, str]]:
        """Exit code, output and step outputs of one step, run as the service does."""
        output = self.temporary / "output"
        output.write_text("")
        given = {key: str(evaluate(str(text), context)) for key, text in step["env"].items()}
        runner = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.temporary),
            "RUNNER_TEMP": str(self.temporary),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.temporary / "summary.md"),
            "GITHUB_ACTIONS": "true",
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.root,
            env=runner | given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        pairs = (line.partition("=") for line in output.read_text().splitlines())
        return (
            done.returncode,
            done.stdout + done.stderr,
            {name: text for name, _, text in pairs},
        )

    def plan(self, github: dict[str, Any], workflow: str = "lab-rocm.yml") -> dict[str, str]:
        """The outputs of the planning job; the same event is planned once."""
        key = json.dumps([github, workflow], sort_keys=True)
        if key not in self._planned:
            self._planned[key] = self._plan(github, workflow)
        return self._planned[key]

    def _plan(self, github: dict[str, Any], workflow: str) -> dict[str, str]:
        job = self.workflow(workflow)["jobs"]["plan"]
        outputs: dict[str, str] = {}
        for step in job["steps"]:
            if "id" in step:
                code, said, found = self.step(step, {"github": github, "inputs": {}})
                assert code == 0, said
                outputs |= found
        wanted = set(job["outputs"])
        assert wanted <= set(outputs)
        return {name: outputs[name] for name in wanted}


def pull_request(*labels: str, body: str = "") -> dict[str, Any]:
    pull = {"number": 3, "body": body, "labels": [{"name": label} for label in labels]}
    return {"event_name": "pull_request", "event": {"pull_request": pull}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    found = Lab(tmp_path_factory.mktemp("two"))
    done = found.parity("workflow")
    assert done.returncode == 0, done.stderr
    found.commit("workflows")
    (found.root / "README.md").write_text("text\n")
    (found.root / "checks" / "check_two.py").open("a").write("# changed\n")
    found.commit("a change")
    return found


def test_the_other_repository_gets_its_own_files(lab: Lab) -> None:
    names = {path.name for path in (lab.root / ".github" / "workflows").iterdir()}
    assert names == {"lab-cpu.yml", "lab-rocm.yml", "lab-rocm-runs.yml"}
    assert lab.parity("workflow", "--check").returncode == 0


def test_its_check_fails_when_its_data_file_has_changed(lab: Lab) -> None:
    path = lab.root / "ci.toml"
    before = path.read_text()
    path.write_text(before.replace("shards = 2", "shards = 3"))
    try:
        done = lab.parity("workflow", "--check")
    finally:
        path.write_text(before)
    assert done.returncode == 1
    assert "lab-cpu.yml is stale" in done.stderr and "lab-rocm-runs.yml" not in done.stderr


def test_its_pull_request_runs_what_changed_and_what_was_asked_for(lab: Lab) -> None:
    outputs = lab.plan(pull_request())
    assert json.loads(outputs["suites"]) == ["quick"]
    assert (outputs["cadence"], outputs["fail_fast"]) == ("regular", "true")
    assert (outputs["references"], outputs["image_tag"]) == ("{}", "")
    outputs = lab.plan(pull_request("run-ci-gpu", "documentation"))
    assert json.loads(outputs["suites"]) == ["quick", "gpu"]
    assert json.loads(outputs["labels"]) == ["run-ci-gpu"]


def test_its_night_runs_everything(lab: Lab) -> None:
    github = {"event_name": "schedule", "event": {"schedule": "30 1 * * *"}}
    outputs = lab.plan(github)
    assert outputs["cadence"] == "nightly"
    assert json.loads(outputs["suites"]) == ["quick", "gpu"]


def test_the_body_names_an_image_tag_and_a_commit(lab: Lab) -> None:
    body = "Better.\r\nci-image-tag-rocm: rc-2\r\nci-engine: main\r\n"
    outputs = lab.plan(pull_request(body=body))
    assert outputs["image_tag"] == "rc-2"
    assert json.loads(outputs["references"]) == {"engine": lab.engine_commit}


HOSTILE = "ci-engine: main$(touch {0})\n`touch {0}`\n'; touch {0} #\n$(touch {0})\n"


def test_hostile_text_is_refused_and_never_runs(lab: Lab) -> None:
    mark = lab.temporary / "mark"
    context = {"github": pull_request(body=HOSTILE.format(mark)), "inputs": {}}
    steps = {s.get("id"): s for s in lab.workflow("lab-rocm.yml")["jobs"]["plan"]["steps"]}
    code, said, outputs = lab.step(steps["references"], context)
    assert code == 2 and "has the reference" in said
    assert outputs == {} and not mark.exists()
    label = f'run-ci-$(touch {mark})"; touch {mark}; "'
    code, said, outputs = lab.step(steps["plan"], {"github": pull_request(label), "inputs": {}})
    assert code == 2 and "run-ci-" in said
    assert outputs == {} and not mark.exists()


def test_its_shards_run_each_test_once(lab: Lab) -> None:
    job = lab.workflow("lab-rocm.yml")["jobs"]["tests-quick"]
    outputs = lab.plan(pull_request())
    ran: list[str] = []
    for shard in job["strategy"]["matrix"]["shard"]:
        context = {
            "github": pull_request(),
            "inputs": {},
            "matrix": {"shard": shard},
            "needs": {"plan": {"outputs": outputs}},
        }
        run = next(step for step in job["steps"] if step["name"] == "Run")
        code, said, _ = lab.step(run, context)
        assert code == 0, said
        ran += [name for name in ("one", "two", "gpu") if f"checked {name}" in said]
        assert (lab.root / "ci-results" / "junit.xml").is_file()
    assert sorted(ran) == ["one", "two"]


def test_one_test_can_be_run_again_alone(lab: Lab) -> None:
    job = lab.workflow("lab-cpu.yml")["jobs"]["tests-quick"]
    run = next(step for step in job["steps"] if step["name"] == "Run")
    outputs = lab.plan(pull_request())
    context = {
        "github": pull_request(),
        "matrix": {"shard": 0},
        "needs": {"plan": {"outputs": outputs}},
    }
    step = {**run, "env": {**run["env"], "FILE": "checks/check_two.py"}}
    code, said, _ = lab.step(step, context)
    assert code == 0, said
    assert "checked two" in said and "checked one" not in said


def test_dependencies_of_an_image_move_to_the_pinned_commit(lab: Lab) -> None:
    image = lab.temporary.parent / "image"
    lab.git(lab.root, "clone", "-q", str(lab.engine), str(image))
    lab.git(lab.engine, "commit", "-q", "--allow-empty", "-m", "newer")
    newer = lab.git(lab.engine, "rev-parse", "HEAD")
    job = lab.workflow("lab-rocm-runs.yml")["jobs"]["tests-gpu"]
    step = next(step for step in job["steps"] if step["name"] == "Apply dependencies")
    context = {"inputs": {"references": json.dumps({"engine": newer})}}
    code, said, _ = lab.step(step, context)
    assert code == 0, said
    assert lab.git(image, "rev-parse", "HEAD") == newer


def test_the_workflows_of_this_repository_are_current() -> None:
    wrong = stale(load_config(HERE))
    assert not wrong, "\n".join([*wrong, "Run `parity ci workflow` and commit what it writes."])


def test_the_tests_of_this_repository_are_all_registered() -> None:
    config = load_config(HERE)
    files = {file.path for file in collect(config, datetime.now(UTC).date()).files}
    on_disk = {path.relative_to(HERE).as_posix() for path in (HERE / "tests").rglob("test_*.py")}
    assert files == on_disk
    hardware = {path for path in files if path.startswith("tests/hardware/")}
    assert len(hardware) >= 4


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "numpy", "hydra", "omegaconf",
                                      "rich", "matplotlib", "pyarrow", "psycopg"}:
            raise ImportError(f"{name} isn't installed where CI plans")
sys.meta_path.insert(0, Blocked())
from parity.cli.main import main
for words in sys.argv[1:]:
    if code := main(["ci", *words.split()]):
        sys.exit(f"{words} ended with {code}")
"""


def test_planning_needs_none_of_the_heavy_packages() -> None:
    lines = [
        "plan --event pull_request",
        "workflow --check",
        "references --backend rocm",
        "run --suite fast --list-only",
    ]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *lines],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
