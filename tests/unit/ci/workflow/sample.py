"""A `ci.toml` with every kind of lane, and the repository around it."""

from pathlib import Path

from parity.ci.config import Config
from parity.ci.loading import load_config
from parity.ci.workflow.files import write

TEXT = """
schema = 1
[project]
roots = ["tests"]
default_branch = "trunk"

[backends.cpu]
description = "hosted machines"
accelerator = false
[backends.cuda]
description = "NVIDIA GPUs"
[backends.rocm]
description = "AMD GPUs"
[backends.npu]
description = "Ascend NPUs"

[suites.fast]
description = "fast tests"
backend = "cpu"
runner = ["ubuntu-24.04"]
shards = 3
[suites.boxed]
description = "in a container"
backend = "cpu"
runner = ["ubuntu-24.04"]
image = "python:3.11"
needs = ["fast"]
[suites.h100-2]
description = "two NVIDIA GPUs"
backend = "cuda"
devices = 2
runner = ["self-hosted", "h100"]
image = "acme/trainer:2026-11"
needs = ["fast"]
[suites.small]
description = "one AMD GPU"
backend = "rocm"
devices = 1
runner = ["self-hosted", "mi300x"]
image = "acme/rocm:7"
needs = ["fast"]
[suites.half]
description = "half an AMD host"
backend = "rocm"
devices = 2
runner = ["self-hosted", "mi300x-half"]
image = "acme/rocm:7"
shards = 3
max_parallel = 2
needs = ["small"]
[suites.ascend]
description = "two Ascend NPUs"
backend = "npu"
devices = 2
runner = ["self-hosted", "ascend"]
image = "acme/cann:8"
shards = 2
cadences = ["weekly"]

[labels]
long = "long tests"
[workflow_labels.nightly]
meaning = "as at night"
cadence = "nightly"
[scopes.none]
[scopes.all]
rank = 1
labels = ["*"]
[cadences.regular]
[cadences.nightly]
cron = ["0 2 * * 1-6"]
scope = "all"
writes_history = true
[cadences.weekly]
cron = ["0 2 * * 0"]
scope = "all"
[events.pull_request]
cadence = "regular"
scope = "none"
prune = true
[events.push]
cadence = "regular"
scope = "none"
[events.schedule]
scope = "none"
[events.workflow_dispatch]
cadence = "regular"
scope = "all"

[workflow]
install = ["python -m pip install parity-rl"]
[workflow.secrets]
PARITY_CI_HISTORY = "HISTORY_URL"
[workflow.lanes.cpu]
install = ["python -m pip install ."]
[workflow.lanes.cuda]
vendor = "nvidia"
mounts = ["/data/models:/models:ro"]
[workflow.lanes.rocm]
vendor = "amd"
options = ["--security-opt=seccomp=unconfined"]
shared_memory_gib = 64
[workflow.lanes.npu]
vendor = "ascend"

[[workflow.slots]]
suite = "half"
runner = ["self-hosted", "mi300x-half", "half-a"]
devices = ["renderD128", "renderD129"]
[[workflow.slots]]
suite = "half"
runner = ["self-hosted", "mi300x-half", "half-b"]
devices = ["renderD130", "renderD131"]

[dependencies.engine]
url = "https://example.com/engine"
path = "/opt/engine"
"""


def make(root: Path, *changes: tuple[str, str], more: str = "") -> Config:
    """The configuration, with texts of it replaced and `more` at its end."""
    text = TEXT
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    root.mkdir(parents=True, exist_ok=True)
    (root / "ci.toml").write_text(text + more)
    return load_config(root)


def workflows(root: Path, *changes: tuple[str, str], more: str = "") -> Path:
    """The folder of the rendered workflows of that configuration."""
    write(make(root, *changes, more=more))
    return root / ".github" / "workflows"
