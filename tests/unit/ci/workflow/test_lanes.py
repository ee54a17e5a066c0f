"""What a job on our machines gets: image, devices, shard, and nothing of the host."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.ci.workflow.sample import make, workflows
from unit.ci.workflow.service import evaluate, load_workflow

from parity.ci.workflow.containers import VENDORS, forbidden_option
from parity.ci.workflow.files import render
from parity.errors import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workflows(tmp_path_factory.mktemp("repository"))


def job(folder: Path, lane: str, suite: str) -> dict[str, Any]:
    return load_workflow(folder / f"ci-{lane}.yml")["jobs"][f"tests-{suite}"]


def options(folder: Path, lane: str, suite: str, **matrix: object) -> list[str]:
    text = job(folder, f"{lane}-runs", suite)["container"]["options"]
    return shlex.split(str(evaluate(text, {"matrix": matrix})))


def test_an_nvidia_container_gets_the_gpus(folder: Path) -> None:
    assert options(folder, "cuda", "h100-2") == ["--gpus=all", "--shm-size=32g"]
    assert "/data/models:/models:ro" in job(folder, "cuda-runs", "h100-2")["container"]["volumes"]


def test_an_amd_container_gets_its_nodes_and_groups(folder: Path) -> None:
    assert options(folder, "rocm", "small") == [
        "--device=/dev/kfd",
        "--device=/dev/dri",
        "--group-add=video",
        "--group-add=render",
        "--shm-size=64g",
        "--security-opt=seccomp=unconfined",
    ]


def test_an_ascend_container_gets_its_davinci_devices_and_the_driver(folder: Path) -> None:
    found = options(folder, "npu", "ascend")
    nodes = [each.removeprefix("--device=/dev/") for each in found if each.startswith("--device")]
    assert nodes == ["davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"]
    assert "--volume=/usr/local/Ascend/driver:/usr/local/Ascend/driver:ro" in found


def test_the_runners_of_a_shared_host_see_disjoint_devices(folder: Path) -> None:
    found = job(folder, "rocm-runs", "half")
    assert found["runs-on"] == "${{ matrix.runner }}"
    shards = found["strategy"]["matrix"]["include"]
    assert [each["shard"] for each in shards] == [0, 1, 2]
    assert [each["runner"][-1] for each in shards] == ["half-a", "half-b", "half-a"]
    by_runner: dict[str, set[str]] = {}
    for each in shards:
        chosen = options(folder, "rocm", "half", **each)
        nodes = {word for word in chosen if word.startswith("--device=/dev/dri")}
        assert len(nodes) == 2 and "--device=/dev/dri" not in nodes
        assert by_runner.setdefault(each["runner"][-1], nodes) == nodes
    assert not by_runner["half-a"] & by_runner["half-b"]


def test_a_slot_of_an_nvidia_host_names_its_gpus() -> None:
    found = VENDORS["nvidia"](2, ("2", "3"))
    # The runner splits options by double quotes; the container runtime reads the rest as CSV.
    assert [shlex.split(each) for each in found] == [['--gpus="device=2,3"']]


def test_shards_are_all_there_and_one_failure_stops_no_other(folder: Path) -> None:
    strategy = job(folder, "cpu", "fast")["strategy"]
    assert strategy == {"fail-fast": False, "matrix": {"shard": [0, 1, 2]}}
    assert job(folder, "rocm-runs", "half")["strategy"]["max-parallel"] == 2


def test_an_image_tag_is_the_one_chosen_or_that_of_the_data_file(folder: Path) -> None:
    image = job(folder, "rocm-runs", "small")["container"]["image"]
    assert evaluate(image, {"inputs": {"image_tag": ""}}) == "acme/rocm:7"
    assert evaluate(image, {"inputs": {"image_tag": "rc-1"}}) == "acme/rocm:rc-1"
    assert job(folder, "cpu", "boxed")["container"]["image"] == "python:3.11"


def test_a_job_probes_cleans_runs_and_uploads_in_this_order(folder: Path) -> None:
    steps = job(folder, "rocm-runs", "small")["steps"]
    names = [step["name"] for step in steps]
    wanted = ["Remove old results", "Probe the devices", "Run", "Upload the results"]
    assert [name for name in names if name in wanted] == wanted
    assert names[-1] == "Clean the workspace"
    assert [step["name"] for step in steps if step.get("if")] == names[-2:]
    uploads = {
        step["with"]["name"]
        for lane in ("cpu", "cuda-runs", "rocm-runs", "npu-runs")
        for each in load_workflow(folder / f"ci-{lane}.yml")["jobs"].values()
        for step in each["steps"]
        if step["name"] == "Upload the results"
    }
    assert len(uploads) == 6 and all("matrix.shard" in name for name in uploads)


def test_leases_are_shared_by_all_containers_of_a_host(folder: Path, tmp_path: Path) -> None:
    found = job(folder, "rocm-runs", "half")["container"]["volumes"]
    assert found == ["/tmp/parity-ci-leases:/tmp/parity-ci-leases"]
    other = workflows(tmp_path, more='[run]\nlease_dir = "/var/lib/leases"\n')
    assert job(other, "rocm-runs", "half")["container"]["volumes"] == [
        "/var/lib/leases:/var/lib/leases"
    ]


def test_each_lane_listens_to_the_schedules_of_its_cadences_only(folder: Path) -> None:
    lines = {
        lane: [each["cron"] for each in load_workflow(folder / f"ci-{lane}.yml")["on"]["schedule"]]
        for lane in ("rocm", "npu")
    }
    assert lines == {"rocm": ["0 2 * * 1-6", "0 2 * * 0"], "npu": ["0 2 * * 0"]}


def test_a_lane_runs_the_hosted_suites_that_its_own_need_first(folder: Path) -> None:
    jobs = load_workflow(folder / "ci-rocm.yml")["jobs"]
    assert list(jobs) == ["plan", "tests-fast", "runs"]
    assert jobs["runs"]["needs"] == ["plan", "tests-fast"]
    assert list(load_workflow(folder / "ci-npu.yml")["jobs"]) == ["plan", "runs"]


ESCAPES = [
    "--privileged",
    "--privileged=true",
    "--pid=host",
    "--ipc=host",
    "--network=host",
    "--net host",
    "--userns=host",
    "--cap-add=SYS_ADMIN",
    "--cap-add=all",
    "--volume=/var/run/docker.sock:/var/run/docker.sock",
    "--volume=/:/host",
    "-v=/etc:/etc",
    "--volume=/root/.ssh:/keys",
    "--mount=type=bind,source=/etc,target=/x",
    "--security-opt=apparmor=unconfined",
    "--device=/dev",
    "--env=X=$(id)",
    "--env=X=`id`",
    "--env=X=${{ github.event.pull_request.title }}",
    "acme/other-image",
    "--volume=/:/x",
    "-v/etc:/x",
    "--volume=/home:/x",
    "--mount=type=bind,source=/,target=/x",
    "--cap-add=CAP_SYS_ADMIN",
    "--device=/dev/mem",
    "--device=/dev/sda",
    "--device=/dev/dri/../mem",
    "--device-cgroup-rule=a",
    "--volumes-from=a",
    "--pid=container:x",
    "--network=container:x",
    "--security-opt=label=disable",
]


@pytest.mark.parametrize("option", ESCAPES)
def test_an_option_that_opens_the_host_is_refused(tmp_path: Path, option: str) -> None:
    assert forbidden_option(option)
    config = make(tmp_path, ("--security-opt=seccomp=unconfined", option))
    with pytest.raises(ConfigError, match=r"ci.toml:\d+: workflow.lanes.rocm.options"):
        render(config)


@pytest.mark.parametrize(
    "option",
    ["--cap-add=SYS_PTRACE", "--ulimit=memlock=-1", "--env=NCCL_DEBUG=INFO", "--memory=64g"],
)
def test_an_option_that_opens_nothing_is_allowed(option: str) -> None:
    assert forbidden_option(option) is None


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('image = "acme/rocm:7"\nneeds', "needs", "without an image"),
        ('"acme/rocm:7"\nneeds', '"acme/rocm"\nneeds', "has no tag"),
        ('"acme/rocm:7"\nneeds', '"acme/rocm:-x"\nneeds', "has the image tag"),
        ('vendor = "amd"', "", "set workflow.lanes.rocm.vendor to one of none, nvidia"),
        ('vendor = "amd"', 'vendor = "intel"', "workflow.lanes.rocm.vendor is 'intel'"),
        ("[events.push]", "[events.pull_request_target]", "can't start a workflow"),
        ("[events.push]", "[events.issue_comment]", "can't start a workflow"),
        ("[workflow.lanes.npu]", "[workflow.lanes.tpu]", "is no backend"),
        (
            'devices = ["renderD128", "renderD129"]',
            'devices = ["renderD128"]',
            "has 1 devices, and suite half uses 2",
        ),
        ('devices = ["renderD128", "renderD129"]', 'devices = ["a b", "c"]', "letters and digits"),
        ('needs = ["small"]', 'needs = ["h100-2"]', "another lane's approval"),
        ('"/data/models:/models:ro"', '"/data/models"', "/host/path:/container/path"),
        ('"/data/models:/models:ro"', '"/etc/x:/models"', "files of the host"),
        ('"/data/models:/models:ro"', '"/var:/v"', "files of the host"),
        ('"/data/models:/models:ro"', '"/home:/x"', "files of the host"),
        ('"/data/models:/models:ro"', '"//x/../etc:/x"', "/host/path:/container/path"),
        ('"/data/models:/models:ro"', '"/home/ci/.ssh:/x"', "hidden files"),
        ('"HISTORY_URL"', '"history url"', "capital letters"),
        ("[workflow]\n", '[workflow]\nprefix = "a b"\n', "must match"),
        ('default_branch = "trunk"', "default_branch = \"x' || true || '\"", "must match"),
        ("schema = 1", "schema = 1\nlabel_prefix = \"x') || always() || ('\"", "must match"),
        ('"acme/rocm:7"\nneeds', '"acme/{0}\'rocm:7"\nneeds', "no registry has"),
        (
            '"acme/rocm:7"\nneeds',
            '"acme/rocm:${{ github.head_ref }}"\nneeds',
            "an expression isn't allowed",
        ),
        ('["self-hosted", "mi300x"]', '["${{ github.head_ref }}"]', "an expression isn't allowed"),
        ("[workflow]\n", "[workflow]\nhosted_runner = '${{ x }}'\n", "must match"),
        ("[workflow]\n", '[workflow]\nlock = "../lock"\n', "inside the repository"),
        ("[workflow]\n", '[workflow]\nrepository = "acme"\n', "must match"),
        ("[workflow]\n", '[workflow]\ncolour = "red"\n', "is unknown"),
        ('url = "https://', 'url = "--upload-pack=', "must match"),
        ('path = "/opt/engine"', 'path = "opt/engine"', "absolute path"),
    ],
)
def test_what_cannot_be_safe_is_refused_with_its_place(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        render(make(tmp_path, (before, after)))


def test_two_suites_never_share_a_job(tmp_path: Path) -> None:
    more = """
[suites."fa.st"]
description = "one"
backend = "cpu"
runner = ["ubuntu-24.04"]
[suites.fa-st]
description = "two"
backend = "cpu"
runner = ["ubuntu-24.04"]
"""
    with pytest.raises(ConfigError, match=r"fa-st and 'fa\.st' are too much alike"):
        render(make(tmp_path, more=more))


@given(st.text(max_size=40))
def test_an_allowed_option_has_no_shell_text(text: str) -> None:
    option = f"--env=X={text}"
    if forbidden_option(option) is None:
        assert not set(option) & set(";&|`$<>\n")


def test_a_line_of_ci_toml_that_pastes_an_event_into_a_script_is_refused(tmp_path: Path) -> None:
    line = 'echo "${{ github.event.pull_request.title }}"'
    before = 'install = ["python -m pip install parity-rl"]'
    with pytest.raises(ConfigError, match="an expression isn't allowed there"):
        render(make(tmp_path, (before, f"install = ['{line}']")))
