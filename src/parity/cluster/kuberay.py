"""The manifest of a run for KubeRay: a RayJob, and a ConfigMap with the run file and its start.

Used by `parity launch kuberay`. The operator pastes `entrypoint` into a shell unquoted, so it is
a plain path, and everything of the user's is in the ConfigMap. The fields are those of KubeRay
1.6; tests hold the manifest against that schema.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import yaml

from parity.cluster.shape import Shape
from parity.config.dialect import Dumper
from parity.config.saved import to_yaml
from parity.config.schema import TasksConfig, TrainConfig
from parity.errors import ConfigError
from parity.rewards.config import (
    PythonRewardConfig,
    RewardConfig,
    SumRewardConfig,
    TaskRewardConfig,
)
from parity.tasks.config import FileConfig
from parity.types import Json

_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_MAX_NAME = 47  # of a RayJob: the operator adds to it
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_RUN_DIR = "/etc/parity"
_START = f"{_RUN_DIR}/run.sh"
_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # an actor without devices keeps the node's list
    "RAY_worker_niceness": "0",  # Ray's own is 15
}
_PROGRAM = """
cd -- "$data_dir" || exit 1
if [[ -f $run_dir/run.json ]]; then
    exec parity resume "$run_dir"
fi
exec parity train "$run_file"
"""


@dataclass(frozen=True, kw_only=True)
class KubeRayOptions:
    """What the run file doesn't say about the cluster."""

    image: str  # with Parity and ray[default]
    claim: str  # PersistentVolumeClaim with the data; it keeps the run
    ray_version: str  # of the image
    name: str  # of the job, and of the run where output.name is open
    mount: str = "/data"  # where the claim is mounted; relative paths of the run start here
    device_resource: str | None = None  # Kubernetes' name of the devices; None: by the platform
    start_deadline_s: int = 1800  # longest wait for the pods
    retries: int = 0  # times that a failed job begins again, from the newest checkpoint

    def __post_init__(self) -> None:
        if not self.image or re.search(r"\s", self.image):
            raise ConfigError(f"--image is {self.image!r}; it must be the name of an image.")
        if len(self.name) > _MAX_NAME or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"--name is {self.name!r}; it must be at most {_MAX_NAME} small letters, digits"
                " and dashes, and begin with a letter."
            )
        if not _CLAIM.fullmatch(self.claim):
            raise ConfigError(
                f"--claim is {self.claim!r}; it must be the name of a PersistentVolumeClaim."
            )
        is_plain = self.mount.startswith("/") and ".." not in PurePosixPath(self.mount).parts
        if not is_plain or ":" in self.mount or PurePosixPath(self.mount) == PurePosixPath("/"):
            raise ConfigError(f"--mount is {self.mount!r}; it must be a folder like /data.")


def as_if_here(config: TrainConfig) -> TrainConfig:
    """The config with local paths that exist, so that `check` asks nothing about other machines."""
    file, folder = Path(__file__), Path(__file__).parent
    tasks = config.eval.tasks
    model = config.model.path
    if model is not None and model.startswith(("/", "./", "../", "~")):
        config = replace(config, model=replace(config.model, path=str(folder)))
    return replace(
        config,
        reward=TaskRewardConfig() if _runs_own_code(config.reward) else config.reward,
        tasks=_at(config.tasks, file),
        eval=replace(config.eval, tasks=None if tasks is None else _at(tasks, file)),
    )


def _runs_own_code(reward: RewardConfig) -> bool:
    """Whether it, or a part of it, is a function of the user's, which only the pods have."""
    if isinstance(reward, SumRewardConfig):
        return any(part.get("name") in ("python", "sum") for part in reward.parts)
    return isinstance(reward, PythonRewardConfig)


def _at(tasks: TasksConfig, path: Path) -> TasksConfig:
    if isinstance(tasks, FileConfig) and tasks.path is not None:
        return replace(tasks, path=str(path))
    return tasks


def manifest(config: TrainConfig, shape: Shape, options: KubeRayOptions) -> str:
    """Two YAML documents for `kubectl apply -f`."""
    runs_dir = PurePosixPath(options.mount) / config.output.dir
    if PurePosixPath(options.mount) not in runs_dir.parents or ".." in runs_dir.parts:
        raise ConfigError(
            f"output.dir is {config.output.dir!r}, which isn't below {options.mount}, where the"
            f" claim {options.claim} is mounted, and would be lost with the pods; give a relative"
            " path, or another --mount."
        )
    name = config.output.name or options.name
    output = replace(config.output, dir=str(runs_dir), name=name)
    values = {
        "data_dir": options.mount,
        "run_dir": str(runs_dir / name),
        "run_file": f"{_RUN_DIR}/run.yaml",
    }
    assigned = "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())
    documents = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{options.name}-run"},
            "data": {
                "run.sh": f"#!/bin/bash\n{assigned}{_PROGRAM}",
                "run.yaml": to_yaml(replace(config, output=output)),
            },
        },
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": options.name},
            "spec": {
                "entrypoint": f"bash {_START}",
                "submissionMode": "K8sJobMode",
                "shutdownAfterJobFinishes": True,
                "preRunningDeadlineSeconds": options.start_deadline_s,
                "backoffLimit": options.retries,
                "rayClusterSpec": _cluster(shape, options),
            },
        },
    ]
    return yaml.dump_all(
        documents, Dumper=_Blocks, sort_keys=False, allow_unicode=True, width=10_000
    )


def _cluster(shape: Shape, options: KubeRayOptions) -> dict[str, Json]:
    start: dict[str, Json] = {"num-cpus": str(shape.cpus)}
    if shape.device in (None, "GPU"):
        start["num-gpus"] = str(shape.devices)
    else:  # the operator pastes it into a shell
        start["resources"] = f'"{{\\"{shape.device}\\": {shape.devices}}}"'
    ports: list[Json] = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
        {"name": "client", "containerPort": 10001},
    ]
    spec: dict[str, Json] = {
        "rayVersion": options.ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0", **start},
            "template": _pod("ray-head", shape, options, {"ports": ports}),
        },
    }
    others = shape.nodes - 1
    if others:
        spec["workerGroupSpecs"] = [
            {
                "groupName": "nodes",
                "replicas": others,
                "minReplicas": others,
                "maxReplicas": others,
                "rayStartParams": start,
                "template": _pod("ray-worker", shape, options, {}),
            }
        ]
    return spec


def _pod(
    name: str, shape: Shape, options: KubeRayOptions, more: Mapping[str, Json]
) -> dict[str, Json]:
    amounts: dict[str, Json] = {"cpu": str(shape.cpus)}
    if shape.memory_gib is not None:
        amounts["memory"] = f"{shape.memory_gib}Gi"
    if shape.devices:
        amounts[_device_resource(shape, options)] = str(shape.devices)
    return {
        "spec": {
            "containers": [
                {
                    "name": name,
                    "image": options.image,
                    **more,
                    "env": [{"name": key, "value": value} for key, value in _VARIABLES.items()],
                    "resources": {"requests": dict(amounts), "limits": dict(amounts)},
                    "volumeMounts": [
                        {"name": "data", "mountPath": options.mount},
                        {"name": "run", "mountPath": _RUN_DIR, "readOnly": True},
                        {"name": "shared-memory", "mountPath": "/dev/shm"},
                    ],
                }
            ],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": options.claim}},
                {"name": "run", "configMap": {"name": f"{options.name}-run"}},
                {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            ],
        }
    }


def _device_resource(shape: Shape, options: KubeRayOptions) -> str:
    if options.device_resource is not None:
        return options.device_resource
    if shape.device != "GPU":
        raise ConfigError(
            f"the run needs {shape.devices} {shape.device} a node, and Parity doesn't know what"
            " Kubernetes calls them; give --device-resource DOMAIN/NAME."
        )
    return f"{shape.vendor}.com/gpu"


class _Blocks(Dumper):
    """Texts of several lines are shown as they are."""

    def ignore_aliases(self, data: object) -> bool:
        """The same amounts are written out wherever they hold."""
        del data
        return True


def _as_block(dumper: _Blocks, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Blocks.add_representer(str, _as_block)
