"""A small repository with hardware CI, for tests of `parity.ci`."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path

from parity.ci.config import Config
from parity.ci.loading import load_config
from parity.ci.model import Inventory
from parity.ci.registry.discovery import collect

TODAY = date(2026, 6, 1)
NAMES = "cpu_ci cuda_ci rocm_ci npu_ci tpu_ci ci_gate ci_cases ci_metric".split()
IMPORT = f"from parity.ci.register import {', '.join(f'register_{name}' for name in NAMES)}\n"
CI_TOML = """\
schema = 1

[project]
roots = ["tests"]
max_disabled_days = 90
cpu_only = ["tests/unit"]

[[implicit]]
folder = "tests/unit"
suite = "cpu-fast"
est_time = 1.0

[backends.cpu]
description = "hosted x86 machines"
accelerator = false
command = ["{python}", "-m", "pytest", "-q", "{file}"]

[backends.cuda]
description = "NVIDIA"

[backends.rocm]
description = "AMD"
variant = "amd"
forbidden_branches = ["torch.version.hip"]

[backends.npu]
description = "Ascend"
variant = "ascend"

[suites.cpu-fast]
description = "unit tests"
backend = "cpu"
runner = ["ubuntu-latest"]
shards = 2

[suites.h100-4]
description = "4 x H100"
backend = "cuda"
devices = 4
runner = ["self-hosted", "h100", "4gpu"]
image = "example/trainer"
shards = 2
needs = ["cpu-fast"]

[suites.mi300-4]
description = "4 x MI300X"
backend = "rocm"
devices = 4
runner = ["self-hosted", "mi300x", "4gpu"]
image = "example/trainer-rocm"
shards = 2
needs = ["cpu-fast"]

[suites.npu-8]
description = "8 x Ascend"
backend = "npu"
devices = 8
runner = ["self-hosted", "ascend", "8npu"]
cadences = ["nightly", "weekly", "release"]

[labels]
megatron = "Megatron training"
fsdp = "FSDP training"
long = "more than 30 minutes"
short = "a few minutes"

[workflow_labels.nightly]
meaning = "as in the night"
cadence = "nightly"

[workflow_labels.run-ci-all]
meaning = "every test"
scope = "all"

[workflow_labels.run-ci-image]
meaning = "what an image change needs"
scope = "image"

[workflow_labels.bypass-fail-fast]
meaning = "go on after failures"
fail_fast = false

[workflow_labels.rebuild-ci-image]
meaning = "build the image again"
one_shot = true

[scopes.none]

[scopes.image]
rank = 1
labels = ["*"]
minus = ["long"]
broad = true

[scopes.nightly]
rank = 2
labels = ["*"]
minus = ["long"]
broad = true

[scopes.all]
rank = 3
labels = ["*"]
broad = true

[cadences.regular]

[cadences.nightly]
cron = ["0 15 * * 0-5"]
scope = "nightly"
admits_nightly = true
fail_fast = false
writes_history = true

[cadences.weekly]
cron = ["0 15 * * 6"]
scope = "all"
admits_nightly = true
fail_fast = false
writes_history = true

[cadences.release]
scope = "all"
admits_nightly = true
fail_fast = false

[events.pull_request]
cadence = "regular"
scope = "none"
prune = true

[events.push]
cadence = "regular"
scope = "none"

[events.schedule]
writes_history = true
scope = "none"

[events.workflow_dispatch]
cadence = "regular"
scope = "all"

[events.workflow_call]
scope = "none"

[[paths]]
globs = ["docs/**", "*.md"]
suites = []
why = "text only"

[[paths]]
globs = ["src/rocm/**"]
suites = ["mi300-*"]
why = "AMD code"
"""


def repository(root: Path, files: Mapping[str, str], *, toml: str = CI_TOML) -> Config:
    """Write ci.toml and the files, and read the configuration."""
    (root / "tests").mkdir(exist_ok=True)
    (root / "ci.toml").write_text(toml)
    for path, text in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return load_config(root)


def inventory(root: Path, files: Mapping[str, str], *, toml: str = CI_TOML) -> Inventory:
    """Write a repository and read its registrations."""
    return collect(repository(root, files, toml=toml), TODAY)
