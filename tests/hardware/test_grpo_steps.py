"""A few GRPO steps of the shipped tiny model on one device, asynchronous, gated by their metrics.

The hard bounds hold on any hardware: log-probs of engine and trainer agree, and nothing blows up.
"""

import json
import math
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

register_cuda_ci(est_time=150, suite="cuda-1", labels=["training"])
register_rocm_ci(est_time=180, suite="rocm-1", labels=["training"])
register_npu_ci(est_time=240, suite="npu-1", labels=["training"])
register_ci_gate(metric_key="train/grad_norm", steps="mean", hard_max=50.0)
register_ci_gate(metric_key="train/ppo_kl", steps="all", hard_max=0.2)
register_ci_gate(
    metric_key="train/train_rollout_logprob_abs_diff",
    steps="all",
    hard_min=0.0,
    hard_max=0.05,
    mode="enforced",
)
register_ci_gate(metric_key="train/train_rollout_kl", steps="all", hard_max=0.05, mode="enforced")
register_ci_gate(metric_key="rollout/raw_reward", steps="last", hard_min=0.0, hard_max=1.0)

STEPS = 6
RECORDED = (
    "train/grad_norm",
    "train/ppo_kl",
    "train/train_rollout_logprob_abs_diff",
    "train/train_rollout_kl",
    "rollout/raw_reward",
)


def test_a_few_steps_train_and_their_metrics_are_recorded(tmp_path: Path) -> None:
    torch_device()
    command = [
        *(sys.executable, "-m", "parity.cli.main", "train", "quickstart"),
        *(f"platform={platform_name()}", f"steps={STEPS}", "display=none"),
        *("rollouts.groups_per_step=16", "rollouts.group_size=4", "eval.every_steps=100"),
        *("eval.num_tasks=8", f"output.dir={tmp_path}", "output.name=steps"),
        "trackers.names=[jsonl]",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=780, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = (tmp_path / "steps" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "train/grad_norm" in row]
    assert [int(row["step"]) for row in steps] == list(range(1, STEPS + 1))
    for row in steps:
        values = {key: float(row[key]) for key in RECORDED}
        record_metrics(values, step=int(row["step"]))
        assert all(math.isfinite(value) for value in values.values()), row
