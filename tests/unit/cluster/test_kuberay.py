"""The manifest for KubeRay: valid by its schema, a run file that loads, a start that resumes."""

import copy
import dataclasses
import json
import subprocess
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from parity.cluster.kuberay import KubeRayOptions, as_if_here, manifest
from parity.cluster.shape import shape_of
from parity.config.arithmetic import check
from parity.config.compose import load_train
from parity.config.saved import load_saved
from parity.config.schema import TrainConfig
from parity.errors import ConfigError

SCHEMA = json.loads((Path(__file__).parent / "kuberay_schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
PLAIN = KubeRayOptions(image="reg/parity:1", claim="data", ray_version="2.60.0", name="quickstart")


def made(*words: str, platform: str = "cpu", **options: object) -> tuple[dict, dict]:
    """(ConfigMap, RayJob)"""
    config = load_train("quickstart", ["runtime=ray", f"platform={platform}", *words])
    chosen = dataclasses.replace(PLAIN, **options)  # pyright: ignore
    found = list(yaml.safe_load_all(manifest(config, shape_of(config), chosen)))
    assert [each["kind"] for each in found] == ["ConfigMap", "RayJob"]
    return found[0], found[1]


TWO_NODES = ("placement.nodes=2", "placement.trainer_ranks=4", "placement.engine_replicas=4")


@pytest.mark.parametrize(
    ("words", "options", "devices", "others"),
    [
        ((), {}, None, 0),
        (TWO_NODES, {"platform": "cuda"}, ("nvidia.com/gpu", "4"), 1),
        (TWO_NODES, {"platform": "rocm", "retries": 2}, ("amd.com/gpu", "4"), 1),
        (
            ("placement.nodes=3", "placement.trainer_ranks=5"),
            {"platform": "npu", "device_resource": "huawei.com/Ascend910"},
            ("huawei.com/Ascend910", "2"),
            2,
        ),
        (("placement.memory_gib_per_process=3",), {"mount": "/mnt/a b"}, None, 0),
    ],
)
def test_the_manifest_is_valid_and_asks_for_what_the_placement_needs(
    words, options, devices, others
):
    _, job = made(*words, **options)
    VALIDATOR.validate(job)
    spec = job["spec"]["rayClusterSpec"]
    groups = spec.get("workerGroupSpecs", [])
    assert sum(group["replicas"] for group in groups) == others
    assert job["spec"]["backoffLimit"] == options.get("retries", 0)
    for group in (spec["headGroupSpec"], *groups):
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        assert container["resources"]["requests"] == limits
        assert limits["cpu"] == group["rayStartParams"]["num-cpus"]
        asked = {name: n for name, n in limits.items() if name not in ("cpu", "memory")}
        assert asked == ({} if devices is None else dict([devices]))
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]}


def test_other_devices_are_told_to_ray_as_the_operators_shell_passes_them_on():
    _, job = made(platform="npu", device_resource="huawei.com/Ascend910")
    params = job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    shell = f"printf %s {params['resources']}"  # the operator pastes values into a command line
    assert json.loads(subprocess.check_output(["bash", "-c", shell])) == {"NPU": 2}


@pytest.mark.parametrize(
    "break_it",
    [
        lambda job: job["spec"].update(entryPoint="x"),
        lambda job: job["spec"].update(preRunningDeadlineSeconds=0),
        lambda job: job["spec"]["rayClusterSpec"].pop("headGroupSpec"),
        lambda job: job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0].pop("minReplicas"),
        lambda job: job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update(a=1),
        lambda job: job["metadata"].update(name="Big_Name"),
    ],
)
def test_the_schema_refuses_a_broken_manifest(break_it):
    _, job = made(*TWO_NODES)
    broken = copy.deepcopy(job)
    break_it(broken)
    assert VALIDATOR.is_valid(job)
    assert not VALIDATOR.is_valid(broken)


def test_the_run_file_is_the_resolved_config_with_a_folder_that_outlives_the_pods(tmp_path: Path):
    maps, job = made("steps=7", "output.dir=all runs")
    assert job["spec"]["entrypoint"] == "bash /etc/parity/run.sh"
    path = tmp_path / "run.yaml"
    path.write_text(maps["data"]["run.yaml"])
    config = load_saved(path)
    assert config == load_train(str(path))
    assert (config.steps, config.output.dir, config.output.name) == (
        7,
        "/data/all runs",
        "quickstart",
    )


@cache
def on_the_cpu() -> TrainConfig:
    return load_train("quickstart", ["runtime=ray", "platform=cpu"])


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(name=TEXT, template=TEXT)
def test_no_value_of_the_user_leaves_its_place(name: str, template: str):
    config = on_the_cpu()
    plain = name.replace("/", "-").strip(".") or "x"
    output = dataclasses.replace(config.output, name=plain)
    model = dataclasses.replace(config.model, chat_template=template)
    config = dataclasses.replace(config, output=output, model=model)
    maps, job = yaml.safe_load_all(manifest(config, shape_of(config), PLAIN))
    VALIDATOR.validate(job)
    head = maps["data"]["run.sh"].partition("\ncd ")[0]
    shown = subprocess.run(
        ["bash"], input=f'{head}\nprintf %s "$run_dir"\n'.encode(), capture_output=True, cwd="/"
    )
    assert shown.stdout.decode() == f"/data/runs/{plain}"
    assert "model" in yaml.safe_load(maps["data"]["run.yaml"])


def test_the_start_trains_and_goes_on_when_it_is_started_again(tmp_path: Path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "parity").write_text('#!/bin/bash\necho "$*"\nexit 3\n')
    (programs / "parity").chmod(0o755)
    maps, _ = made()
    text = maps["data"]["run.sh"].replace("/data", str(tmp_path))

    def start() -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", text], env={"PATH": f"{programs}:/usr/bin:/bin"}, capture_output=True
        )
        return done.returncode, done.stdout.decode()

    assert start() == (3, "train /etc/parity/run.yaml\n")
    folder = tmp_path / "runs" / "quickstart"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert start() == (3, f"resume {folder}\n")


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        ((), {"image": ""}, "name of an image"),
        ((), {"claim": "A claim"}, "PersistentVolumeClaim"),
        ((), {"name": "x" * 48}, "at most 47"),
        ((), {"mount": "/"}, "folder like /data"),
        ((), {"mount": "/a:b"}, "folder like /data"),
        (("output.dir=/elsewhere",), {}, "lost with the pods"),
        (("output.dir=../up",), {}, "lost with the pods"),
        ((), {"platform": "npu"}, "give --device-resource"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(words, options, says):
    with pytest.raises(ConfigError, match=says):
        made(*words, **options)


def test_files_of_the_pods_need_not_be_on_this_machine():
    words = ["runtime=ray", "platform=cpu", "model.path=/data/model", "tasks.path=/data/t.jsonl"]
    config = load_train("finetune", words)
    with pytest.raises(ConfigError, match="doesn't exist"):
        check(config)
    check(as_if_here(config))
