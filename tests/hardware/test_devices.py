"""What only a real accelerator can show; skips, with the reason, where there is none."""

import json
import os
import subprocess
import sys

import pytest

from parity.ci.register import register_cuda_ci, register_npu_ci, register_rocm_ci
from parity.errors import UnsupportedError
from parity.platforms.collect import collect
from parity.platforms.detect import decide, load
from parity.platforms.platform import Platform
from parity.platforms.visibility.compose import compose

register_cuda_ci(est_time=60, suite="cuda-1", labels=["platform"])
register_rocm_ci(est_time=70, suite="rocm-1", labels=["platform"])
register_npu_ci(est_time=80, suite="npu-1", labels=["platform"])

FACTS = collect()
DECISION = decide(FACTS)
if DECISION.platform == "cpu" or not DECISION.is_usable_here:
    pytest.skip(f"needs an accelerator: {'; '.join(DECISION.reasons)}", allow_module_level=True)


@pytest.fixture(scope="module")
def platform() -> Platform:
    return load(DECISION.platform)


def child(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_the_runtime_counts_the_devices_that_the_decision_counted(platform: Platform):
    assert DECISION.devices is not None
    assert platform.device_count() == len(DECISION.devices)


def test_deciding_initialises_no_runtime_so_that_a_forked_child_can_use_the_device():
    code = (
        "import os, torch\n"
        "from parity.platforms.collect import collect\n"
        "from parity.platforms.detect import decide\n"
        "from parity.platforms.plugins import all_platforms\n"
        "decision = decide(collect())\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    platform = all_platforms()[decision.platform]()\n"
        "    torch.zeros(1, device=platform.device(0)).add_(1)\n"
        "    platform.synchronize()\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert child(code) == "0"


def test_a_child_sees_the_devices_that_it_was_given(platform: Platform):
    assert platform.visibility is not None
    probe = next(probe for probe in FACTS.smi if probe.devices)
    view = compose(platform.visibility, FACTS.environment, probe.devices)
    code = (
        f"from parity.platforms.detect import load\nprint(load({platform.name!r}).device_count())\n"
    )
    assert child(code, **view.child_variables([0])) == "1"


def test_a_peak_is_known_for_this_model_or_nothing_is_reported(platform: Platform):
    peak = platform.peak_flops(platform.device_name(0), "bfloat16")
    assert peak is None or 1e13 < peak < 1e16


def test_seeds_repeat_and_memory_is_counted(platform: Platform):
    import torch

    platform.seed(3)
    first = torch.rand(1024, device=platform.device(0)).cpu()
    platform.seed(3)
    assert torch.equal(first, torch.rand(1024, device=platform.device(0)).cpu())
    before = platform.memory(0)
    block = torch.empty(1 << 28, dtype=torch.uint8, device=platform.device(0))
    platform.synchronize()
    assert platform.memory(0).free_bytes <= before.free_bytes - block.numel() // 2


def test_another_process_reads_a_shared_buffer(platform: Platform):
    import torch

    support = platform.ipc_support(FACTS)
    if support.is_supported is not True:
        pytest.skip(support.reason)
    code = (
        "import json, sys\n"
        "from parity.platforms.detect import load\n"
        "from parity.platforms.ipc import IpcHandle\n"
        f"platform = load({platform.name!r})\n"
        "platform.set_device(0)\n"
        "handle = IpcHandle.from_json(json.loads(sys.argv[1]))\n"
        "with platform.ipc().open(handle, 0) as view:\n"
        "    print(int(view.sum().item()))\n"
    )
    tensor = torch.arange(1000, device=platform.device(0))
    try:
        with platform.ipc().export(tensor) as handle:
            done = subprocess.run(
                [sys.executable, "-c", code, json.dumps(handle.to_json())],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
    except (RuntimeError, UnsupportedError) as error:
        pytest.fail(f"the buffer couldn't be exported: {error}")
    assert done.stdout.strip() == str(999 * 500), done.stderr[-2000:]
