"""Trainer and engine take turns on one device, and its memory is back at its baseline after each.

What torch holds on the device (its reserved blocks) is the same number every turn: nothing else
allocates there, so growth of one block is a leak.
"""

import json
import subprocess
import sys
from pathlib import Path

from hardware.device import platform_name, torch_device

from parity.ci.gates.record import record_metrics
from parity.ci.register import (
    register_ci_gate,
    register_cuda_ci,
    register_npu_ci,
    register_rocm_ci,
)

register_cuda_ci(est_time=180, suite="cuda-1", labels=["training"])
register_rocm_ci(est_time=210, suite="rocm-1", labels=["training"])
register_npu_ci(est_time=300, suite="npu-1", labels=["training"])
register_ci_gate(metric_key="colocated_growth_mib", hard_max=8.0, mode="enforced")

STEPS = 20
WARM = 4  # steps in which workspaces are made that stay
MIB = 2**20
AFTER = ("device/after_engine_turn_bytes", "device/after_trainer_turn_bytes")


def test_device_memory_is_back_at_its_baseline_after_each_turn(tmp_path: Path) -> None:
    is_cpu = torch_device().type == "cpu"
    command = [
        *(sys.executable, "-m", "parity.cli.main", "train", "quickstart"),
        *(f"platform={platform_name()}", f"steps={STEPS}", "display=none"),
        *("placement.kind=colocated", "rollouts.max_lag=0", "trackers.names=[jsonl]"),
        *("rollouts.groups_per_step=8", "rollouts.group_size=4", "eval.every_steps=100"),
        *("eval.num_tasks=8", f"output.dir={tmp_path}", "output.name=turns"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=780, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = (tmp_path / "turns" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "train/loss" in row]
    assert len(steps) == STEPS
    slack = 32 if is_cpu else 8  # MiB; the heap of a CPU's process has more slack
    for name in AFTER:
        values = [row[name] / MIB for row in steps[WARM:]]
        growth = max(values) - values[0]
        record_metrics({"colocated_growth_mib": growth}, step=STEPS)
        assert growth <= slack, (name, values)
    for row in steps[WARM:]:
        assert row["device/after_engine_turn_bytes"] < row["device/engine_turn_bytes"], row
